"""`/act/…`: one action for many DAGs, runs or task instances: first the preview of its effect, then the action.

Each of them is changed on its own, as its own view would do it. One that cannot be changed is named with the reason,
and the others are changed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import anyio
from msgspec import Meta
from starlette.responses import Response

from asynsched.errors import AsynschedError, NotFound
from asynsched.keys import DagRunKey, instance_name
from asynsched.queries.dags import DagFilter, DagInfo, list_dags, pause_dag
from asynsched.queries.paging import MOST_ROWS, BadRequest, Paging
from asynsched.queries.run_actions import cancel_run, clear_tasks, delete_run, mark_run, trigger_run
from asynsched.queries.run_edits import Clear, preview
from asynsched.queries.runs import RunInfo, runs_of_rows
from asynsched.queries.task_actions import Mark, mark_tasks
from asynsched.queries.task_instances import TaskInstanceInfo, instances_of_rows
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.states import DagRunState
from asynsched.store.runs.requests import (
    CancelRun,
    ClearTasks,
    MarkedRunState,
    MarkedTaskState,
    MarkRun,
    MarkTasks,
    RunRequest,
)
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call, check
from asynsched.web.pages.page import PAGE, RowId, form_of, one, query_of, redirect, show
from asynsched.web.pages.showing import count, shortened

MOST_CHOSEN = 200
AT_ONCE = 10
"""Actions at the same time: each may wait for the scheduler that owns its run."""
Chosen = Annotated[tuple[RowId, ...], Meta(max_length=MOST_CHOSEN)]
DAG_ACTIONS = {"pause": "Pause", "unpause": "Unpause", "trigger": "Trigger"}
RUN_ACTIONS = {
    "clear": "Clear", "clear-failed": "Clear failed tasks of", "success": "Mark as success", "failed": "Mark as failed",
    "cancel": "Cancel", "delete": "Delete",
}  # fmt: skip
TASK_ACTIONS = {
    "clear": "Clear", "success": "Mark as success", "failed": "Mark as failed", "skipped": "Mark as skipped",
}  # fmt: skip


class Step(NamedTuple):
    """An action on one of the chosen things.

    Attributes:
        name: Of the thing.
        dag_id: Its DAG, whose right is needed.
        effect: What the action does to it, for the preview.
        problem: Why it cannot be done; empty if it can.
        do: Does it.
    """

    name: str
    dag_id: str
    effect: str
    problem: str
    do: Callable[[], Awaitable[object]]


class Plan(NamedTuple):
    """What somebody wants to do with the chosen things.

    Attributes:
        view: The list that they were chosen in: `dags`, `runs` or `tasks`.
        noun: One of the things.
        verb: The action, for people.
        chosen: The fields that name the things in a form.
    """

    view: str
    noun: str
    verb: str
    chosen: Sequence[tuple[str, str]]
    steps: Sequence[Step]

    @property
    def possible(self) -> list[Step]:
        """The steps that nothing is known to prevent."""
        return [step for step in self.steps if not step.problem]

    @property
    def sentence(self) -> str:
        """What it is, for a person."""
        first, _, rest = self.verb.partition(" as ")
        return f"{first} {count(len(self.chosen), self.noun)}{f' as {rest}' if rest else ''}"


# The views


@PAGE.endpoint("GET", "/act/dags")
async def confirm_dags(call: Call, do: str = "", dag: tuple[str, ...] = (), back: str = "") -> Response:
    """Show the effect of an action on several DAGs, and ask whether to do it."""
    return await _confirm(call, await _plan_dags(call, do, dag), do, back)


@PAGE.endpoint("POST", "/act/dags")
async def act_on_dags(call: Call) -> Response:
    """Pause, unpause or trigger several DAGs."""
    fields = await form_of(call)
    return await _act(call, await _plan_dags(call, one(fields, "do"), fields.get("dag", ())), fields)


@PAGE.endpoint("GET", "/act/runs")
async def confirm_runs(call: Call, do: str = "", run: Chosen = (), back: str = "") -> Response:
    """Show the effect of an action on several runs, and ask whether to do it."""
    return await _confirm(call, await _plan_runs(call, do, run), do, back)


@PAGE.endpoint("POST", "/act/runs")
async def act_on_runs(call: Call) -> Response:
    """Clear, mark, cancel or delete several runs."""
    fields = await form_of(call)
    return await _act(call, await _plan_runs(call, one(fields, "do"), _numbers(fields, "run")), fields)


@PAGE.endpoint("GET", "/act/tasks")
async def confirm_tasks(call: Call, do: str = "", task: Chosen = (), back: str = "") -> Response:
    """Show the effect of an action on several task instances, and ask whether to do it."""
    return await _confirm(call, await _plan_tasks(call, do, task), do, back)


@PAGE.endpoint("POST", "/act/tasks")
async def act_on_tasks(call: Call) -> Response:
    """Clear or mark several task instances."""
    fields = await form_of(call)
    return await _act(call, await _plan_tasks(call, one(fields, "do"), _numbers(fields, "task")), fields)


def _numbers(fields: Mapping[str, list[str]], name: str) -> tuple[int, ...]:
    given = fields.get(name, [])
    if not all(text.isascii() and text.isdecimal() and len(text) < 19 for text in given):
        raise BadRequest(f"The field {name} must be the number of a row.")
    return tuple(int(text) for text in given)


async def _confirm(call: Call, plan: Plan, do: str, back: str) -> Response:
    return await show(call, "many.html", plan=plan, do=do, back=back)


async def _act(call: Call, plan: Plan, fields: dict[str, list[str]]) -> Response:
    """Do the steps, several at once, and go back to the list with a sentence about them."""
    problems = [f"{step.name}: {step.problem}." for step in plan.steps if step.problem]
    slots = anyio.Semaphore(AT_ONCE)

    async def take(step: Step) -> None:
        async with slots:
            try:
                await step.do()
            except AsynschedError as exc:
                problems.append(f"{step.name}: {exc}")

    async with anyio.create_task_group() as tasks:
        for step in plan.possible:
            tasks.start_soon(take, step)
    said = f"{plan.sentence}: done."
    if problems:
        said = f"{plan.sentence}: {len(problems)} of {len(plan.steps)} failed. {' '.join(sorted(problems))}"
    return redirect(call, plan.view, said=shortened(said, 600), **query_of(one(fields, "back")))


# The plans


async def _plan_dags(call: Call, do: str, dag_ids: Sequence[str]) -> Plan:
    _check(do, DAG_ACTIONS, dag_ids, "DAG")
    named = frozenset(dag_ids)
    for dag_id in sorted(named):
        check(call.who, Permission.OPERATE, dag_id)
    found = (await call.context.ask(list_dags, DagFilter(named), Paging(limit=MOST_ROWS))).items
    if unknown := named - {dag.dag_id for dag in found}:
        raise NotFound("DAG", min(unknown))
    steps = [_dag_step(call, do, dag) for dag in found]
    return Plan("dags", "DAG", DAG_ACTIONS[do], [("dag", dag.dag_id) for dag in found], steps)


def _dag_step(call: Call, do: str, dag: DagInfo) -> Step:
    context, actor = call.context, call.who.name
    if do == "trigger":
        effect = "waits until the DAG is unpaused" if dag.paused else "begins a run with the params' defaults"

        async def trigger() -> None:
            await trigger_run(context, actor, dag.dag_id, Trigger())

        return Step(dag.dag_id, dag.dag_id, effect, "", trigger)
    is_same = dag.paused is (do == "pause")

    async def pause() -> None:
        await context.act(actor, pause_dag, dag.dag_id, paused=do == "pause", now=context.clock.now())

    states = ("is active", "is paused")
    effect = f"{states[dag.paused]} already" if is_same else f"{states[dag.paused]} now"
    return Step(dag.dag_id, dag.dag_id, effect, "", pause)


async def _plan_runs(call: Call, do: str, row_ids: Sequence[int]) -> Plan:
    _check(do, RUN_ACTIONS, row_ids, "run")
    runs = await call.context.ask(runs_of_rows, row_ids)
    _check_found(call, row_ids, runs, "run")
    steps = [await _run_step(call, do, run) for run in runs]
    return Plan("runs", "run", RUN_ACTIONS[do], [("run", str(run.id)) for run in runs], steps)


async def _run_step(call: Call, do: str, run: RunInfo) -> Step:
    context, actor, key = call.context, call.who.name, run.key
    name = f"{run.run_id} of {run.dag_id}"
    if do == "delete":
        problem = "it is running: cancel it first" if run.state == DagRunState.RUNNING else ""
        effect = "goes with its task instances, XComs and logs"
        return Step(name, run.dag_id, effect, problem, lambda: delete_run(context, actor, key))
    request: RunRequest
    if do in ("clear", "clear-failed"):
        request = clear = ClearTasks(only_failed=do == "clear-failed")
        return await _previewed(
            call, name, key, request, lambda: clear_tasks(context, actor, key, Clear(request=clear))
        )
    if do == "cancel":
        return await _previewed(call, name, key, CancelRun(), lambda: cancel_run(context, actor, key))
    state: MarkedRunState = "success" if do == "success" else "failed"
    return await _previewed(call, name, key, MarkRun(state), lambda: mark_run(context, actor, key, state))


async def _plan_tasks(call: Call, do: str, row_ids: Sequence[int]) -> Plan:
    _check(do, TASK_ACTIONS, row_ids, "task instance")
    rows = await call.context.ask(instances_of_rows, row_ids)
    _check_found(call, row_ids, rows, "task instance")
    steps = [await _task_step(call, do, *one) for one in _requests(rows)]
    return Plan("tasks", "task instance", TASK_ACTIONS[do], [("task", str(row.id)) for row in rows], steps)


def _requests(rows: Iterable[TaskInstanceInfo]) -> list[tuple[DagRunKey, tuple[str, ...], int | None]]:
    """Return the run, the tasks and the map index of each request: one for the unmapped tasks of a run."""
    unmapped: dict[DagRunKey, list[str]] = {}
    for row in rows:
        if row.map_index < 0:
            unmapped.setdefault(row.key.run, []).append(row.task_id)
    mapped = [(row.key.run, (row.task_id,), row.map_index) for row in rows if row.map_index >= 0]
    return [*((key, tuple(tasks), None) for key, tasks in unmapped.items()), *mapped]


async def _task_step(call: Call, do: str, key: DagRunKey, tasks: tuple[str, ...], index: int | None) -> Step:
    context, actor = call.context, call.who.name
    names = ", ".join(instance_name(task_id, -1 if index is None else index) for task_id in tasks)
    name = f"{names} of {key.run_id} of {key.dag_id}"
    if do == "clear":
        clear = ClearTasks(tasks, map_index=index)
        return await _previewed(call, name, key, clear, lambda: clear_tasks(context, actor, key, Clear(request=clear)))
    state: MarkedTaskState = "success" if do == "success" else "failed" if do == "failed" else "skipped"
    mark = MarkTasks(tasks, state, map_index=index)
    return await _previewed(call, name, key, mark, lambda: mark_tasks(context, actor, key, Mark(mark)))


async def _previewed(
    call: Call, name: str, key: DagRunKey, request: RunRequest, do: Callable[[], Awaitable[object]]
) -> Step:
    """Return the step of a request, with the task instances that it would change, or why it cannot be done."""
    try:
        touched = await call.context.ask(preview, key, request, now=call.context.clock.now())
    except AsynschedError as exc:
        return Step(name, key.dag_id, "", str(exc).rstrip("."), do)
    return Step(name, key.dag_id, f"changes {count(len(touched), 'task instance')}", "", do)


def _check(do: str, known: Mapping[str, str], chosen: Sequence[object], noun: str) -> None:
    """Raise BadRequest unless this is an action on some things, and not on too many."""
    if do not in known:
        raise BadRequest(f"Choose what to do: {', '.join(known)}.")
    if not 0 < len(chosen) <= MOST_CHOSEN:
        raise BadRequest(f"Choose 1 to {MOST_CHOSEN} {noun}s.")


def _check_found(
    call: Call, row_ids: Sequence[int], rows: Sequence[RunInfo] | Sequence[TaskInstanceInfo], noun: str
) -> None:
    """Raise NotAllowed for things of DAGs that one may not operate, and NotFound for those that are gone."""
    for dag_id in sorted({row.dag_id for row in rows}):
        check(call.who, Permission.OPERATE, dag_id)
    if gone := set(row_ids) - {row.id for row in rows}:
        check(call.who, Permission.OPERATE, None)  # who may not operate all DAGs does not learn what is gone
        raise NotFound(noun, str(min(gone)))
