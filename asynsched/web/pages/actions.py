"""`…/act`: clear, mark and cancel runs and tasks: first what that would change, then the change itself."""

from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from asynsched.errors import AsynschedError
from asynsched.keys import DagRunKey
from asynsched.queries.paging import BadRequest
from asynsched.queries.run_actions import cancel_run, clear_tasks, mark_run
from asynsched.queries.run_edits import Clear, preview
from asynsched.queries.runs import get_state
from asynsched.queries.task_actions import Mark, mark_tasks
from asynsched.scheduling.requests.run_requests import ChangedTask, Submitted
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkRun, MarkTasks, RunRequest
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.page import PAGE, MapIndex, form_of, one, redirect, show, whole_number
from asynsched.web.pages.showing import count

MOST_SHOWN = 200
OPTIONS = ("upstream", "downstream", "only_failed", "only_running", "latest")
TASK_STATES = ("success", "failed", "skipped")
RUN_STATES = ("success", "failed")


class PageAction(NamedTuple):
    """An action of the page on a run or on one of its tasks; its kind is `clear`, `mark` or `cancel`."""

    kind: str
    task_id: str = ""
    map_index: int | None = None
    state: str = ""
    options: frozenset[str] = frozenset()

    @property
    def request(self) -> RunRequest:
        """The request. Raises BadRequest."""
        tasks = (self.task_id,) if self.task_id else ()
        has = {name: name in self.options for name in OPTIONS}
        if self.kind == "clear":
            return ClearTasks(tasks, map_index=self.map_index if tasks else None, **has)
        if self.kind == "mark" and tasks and self.state in TASK_STATES:
            state = self.state
            return MarkTasks(
                tasks, "success" if state == "success" else "failed" if state == "failed" else "skipped",
                upstream=has["upstream"], downstream=has["downstream"], map_index=self.map_index,
            )  # fmt: skip
        if self.kind == "mark" and not tasks and self.state in RUN_STATES:
            return MarkRun("success" if self.state == "success" else "failed")
        if self.kind == "cancel" and not tasks:
            return CancelRun()
        raise BadRequest("Choose to clear, to mark as a state, or to cancel a run.")

    @property
    def sentence(self) -> str:
        """What it is, for a person."""
        what = "the run" if not self.task_id else self.task_id
        if self.task_id and self.map_index is not None and self.map_index >= 0:
            what = f"{self.task_id}[{self.map_index}]"
        if self.kind == "mark":
            return f"Mark {what} as {self.state}"
        return f"{self.kind.capitalize()} {what}"


@PAGE.endpoint("GET", "/dags/{dag_id}/runs/{run_id}/act", permission=Permission.OPERATE)
async def confirm(
    call: Call, dag_id: str, run_id: str, action: str, task_id: str = "", map_index: MapIndex | None = None,
    state: str = "", upstream: str = "", downstream: str = "", only_failed: str = "", only_running: str = "",
    latest: str = "",
) -> Response:  # fmt: skip
    """Show which task instances an action would change, and ask whether to do it."""
    given = (upstream, downstream, only_failed, only_running, latest)
    options = frozenset(name for name, value in zip(OPTIONS, given, strict=True) if value)
    chosen, key = PageAction(action, task_id, map_index, state, options), DagRunKey(dag_id, run_id)
    run_state = await call.context.ask(get_state, *key)
    problem = ""
    touched: Sequence[ChangedTask] = ()
    try:
        touched = await call.context.ask(preview, key, chosen.request, now=call.context.clock.now())
    except BadRequest:
        raise
    except AsynschedError as exc:
        problem = str(exc)
    return await show(
        call, "act.html", run_state=run_state, key=key, chosen=chosen, touched=touched[:MOST_SHOWN],
        n_touched=len(touched), problem=problem,
    )  # fmt: skip


@PAGE.endpoint("POST", "/dags/{dag_id}/runs/{run_id}/act", permission=Permission.OPERATE)
async def act(call: Call, dag_id: str, run_id: str) -> Response:
    """Do an action, and go back to the run or the task."""
    fields, key = await form_of(call), DagRunKey(dag_id, run_id)
    index = whole_number(fields, "map_index", least=-1, most=2**31 - 1) if one(fields, "map_index") else None
    chosen = PageAction(
        one(fields, "action"), one(fields, "task_id"), index,
        one(fields, "state"), frozenset(name for name in OPTIONS if one(fields, name)),
    )  # fmt: skip
    done = await _do(call, key, chosen.request)
    what = f"{chosen.sentence}: {count(len(done.instances), 'task instance')}"
    said = f"{what}." if done.request_id is None else f"{what}, as soon as the run's scheduler has taken it up."
    path = ("dags", dag_id, "runs", run_id)
    if not chosen.task_id:
        return redirect(call, *path, said=said)
    return redirect(call, *path, "tasks", chosen.task_id, said=said, map_index=_index(chosen))


async def _do(call: Call, key: DagRunKey, request: RunRequest) -> Submitted:
    context, actor = call.context, call.who.name
    match request:
        case ClearTasks():
            return await clear_tasks(context, actor, key, Clear(request=request))
        case MarkTasks():
            return await mark_tasks(context, actor, key, Mark(request))
        case MarkRun(state=state):
            return await mark_run(context, actor, key, state)
        case _:
            return await cancel_run(context, actor, key)


def _index(chosen: PageAction) -> int | None:
    return chosen.map_index if chosen.map_index is not None and chosen.map_index >= 0 else None
