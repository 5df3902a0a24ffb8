"""`Client`: every question and action, of a scheduler in this process or of one elsewhere, by the same methods."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import anyio
from anyio import to_thread
from msgspec import Meta

from asynsched.client.operation import Instant, Several, operation
from asynsched.errors import AsynschedError, NotFound, StoreUnavailable
from asynsched.explaining.reason import Explanation
from asynsched.foreground.plugins import PluginRow
from asynsched.health import Health
from asynsched.keys import AnyRun, AnyTask, DagRunKey, run_key, task_key
from asynsched.previewing.asking import LONGEST_HOURS, preview_commit
from asynsched.queries import (
    assets,
    audit,
    backfills,
    dag_versions,
    dags,
    deadlines,
    hitl,
    import_errors,
    plugins,
    pools,
    run_actions,
    run_edits,
    runs,
    schedulers,
    secrets,
    task_actions,
    task_instances,
    users,
    xcoms,
)
from asynsched.queries.assets import AssetFilter, AssetInfo, EventFilter, EventInfo, QueuedFilter, QueuedInfo
from asynsched.queries.audit import AuditFilter
from asynsched.queries.backfills import BackfillDateInfo, BackfillFilter, BackfillInfo, backfill_info
from asynsched.queries.context import Act, QueryContext
from asynsched.queries.dag_details import DagDetails, read_details
from asynsched.queries.dag_versions import SourceInfo, VersionFilter, VersionInfo
from asynsched.queries.dags import DagFilter, DagInfo, WarningInfo
from asynsched.queries.deadlines import DeadlineFilter, DeadlineInfo
from asynsched.queries.events import Change, Missed, NoEvents
from asynsched.queries.hitl import QuestionFilter, WaitingQuestion
from asynsched.queries.import_errors import ImportErrorFilter, ImportErrorInfo
from asynsched.queries.late import Late, list_late
from asynsched.queries.log_lines import FoundLine
from asynsched.queries.paging import USUAL_ROWS, BadRequest, Limit, Page, Paging, Pattern, Range
from asynsched.queries.permissions import Permission
from asynsched.queries.plugins import ProviderInfo
from asynsched.queries.pools import PoolInfo
from asynsched.queries.preview import Preview
from asynsched.queries.run_edits import Clear
from asynsched.queries.runs import CallbackInfo, RunFilter, RunInfo
from asynsched.queries.schedulers import SchedulerInfo
from asynsched.queries.secrets import ConnectionInfo, VariableInfo
from asynsched.queries.serving import health_of_home
from asynsched.queries.simulate import simulate
from asynsched.queries.task_actions import Mark
from asynsched.queries.task_instances import TaskInstanceFilter, TaskInstanceInfo, TriesInfo, fields_of_try
from asynsched.queries.try_logs import (
    MOST_BYTES,
    LogPart,
    find_in_log,
    newest_try,
    read_lines,
    read_log,
    read_tail,
)
from asynsched.queries.upcoming import MOST_UPCOMING, UpcomingRun, upcoming
from asynsched.queries.users import LONGEST_TOKEN, Issuer, NewToken, Scope, TokenFilter, TokenInfo, UserInfo
from asynsched.queries.why import why
from asynsched.queries.xcoms import XComFilter, XComInfo, XComValue
from asynsched.scheduling.creation.backfills import BackfillPlan
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.evaluation.decisions import IGNORABLE
from asynsched.scheduling.requests.run_requests import ChangedTask
from asynsched.simulation.own_process import LONGEST_SECONDS
from asynsched.simulation.summary import Simulated
from asynsched.states import FINISHED_RUN_STATES, DagRunState, DagRunType, TaskInstanceState
from asynsched.store.runs.backfills import Reprocess
from asynsched.store.runs.requests import ClearTasks, ForceTask, MarkedTaskState, MarkTasks
from asynsched.store.schema import AuditRow

if TYPE_CHECKING:
    import httpx
    from sqlalchemy import Connection


P = ParamSpec("P")
T = TypeVar("T")
DeadlineState = Literal["pending", "met", "missed"]
RunStateName = Literal["queued", "running", "success", "failed"]
TaskStateName = Literal[
    "removed", "scheduled", "queued", "running", "success", "restarting", "failed", "up_for_retry",
    "up_for_reschedule", "upstream_failed", "skipped", "deferred", "awaiting_input",
]  # fmt: skip
RunTypeName = Literal[
    "manual", "scheduled", "backfill", "asset_triggered", "operator_triggered", "asset_materialization"
]
if TYPE_CHECKING:  # msgspec takes a name for a member anyway, and no union of both
    RunState = DagRunState | RunStateName
    TaskState = TaskInstanceState | TaskStateName
    RunType = DagRunType | RunTypeName
else:
    RunState, TaskState, RunType = DagRunState, TaskInstanceState, DagRunType
Slots = Annotated[int, Meta(ge=-1)]
OrderBy = Several[str]
NEWEST_FIRST = ("-run_after",)
LONGEST_WAIT_SECONDS = 50.0
"""Of one request: proxies close connections that are silent for a minute."""
RETRY_PAUSE = timedelta(seconds=1)


class Client:
    """Asks questions, and acts. `Scheduler.client()` returns one for the scheduler of this process.

    Each method is also a request of the REST API, and raises the same errors wherever it is answered:

    - NotFound (404): there is no such DAG, run, task, pool, …;
    - BadRequest (400): a filter, a name to sort by or the place of a page is wrong;
    - AlreadyExists (409), DagError (400): a run cannot be created like this;
    - StoreUnavailable (503): the database cannot be reached at the moment;
    - another AsynschedError (409): the action does not fit the present state;
    - RemoteError: the other process cannot be reached, or does not allow this.

    Lists come in pages: give `after` of one page to get the next one. `order_by` has names to sort by, the first counts
    most; a minus sign before a name reverses it.

    Args:
        url: Of the application, such as `https://example.com/asynsched`.
        token: A personal token.
        transport: Of httpx, in place of the network.

    Raises:
        ImportError: httpx is not installed.

    Usage:
        async with Client("https://scheduler.example.com", token=TOKEN) as client:
            run = await client.wait_run(await client.trigger("etl"))
    """

    _find_context: Callable[[], QueryContext]
    _actor: str
    _dag_ids: frozenset[str] | None
    _operated: frozenset[str] | None
    _issuer: Issuer | None

    def __init__(
        self, url: str, *, token: str | None = None, transport: "httpx.AsyncBaseTransport | None" = None
    ) -> None:
        try:
            from asynsched.client.remote import Remote  # needs httpx, which a client in this process does not
        except ModuleNotFoundError as exc:
            advice = "pip install 'asynsched[client]'"
            raise ImportError(f"Client(url) needs a library that is not installed ({exc.name}): {advice}") from exc
        self.remote: Remote | None = Remote(url, token, transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to another process."""
        if self.remote is not None:
            await self.remote.close()

    @property
    def _context(self) -> QueryContext:
        return self._find_context()

    async def _ask(self, question: "Callable[Concatenate[Connection, P], T]", *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._context.ask(question, *args, **kwargs)

    async def _act(
        self, action: "Callable[Concatenate[Connection, P], Act[T]]", *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._context.act(self._actor, action, *args, **kwargs)

    # DAGs

    @operation("GET /dags")
    async def list_dags(
        self,
        *,
        pattern: str | None = None,
        tags: Several[str] = (),
        owners: Several[str] = (),
        paused: bool | None = None,
        active: bool | None = True,
        has_errors: bool | None = None,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = (),
    ) -> Page[DagInfo]:
        """List the DAGs.

        Args:
            pattern: Part of the dag_id, in either case.
            tags: Only those with any of these tags.
            owners: Only those of any of these owners.
            active: Only those that are in a file, or only others; None: both.
        """
        wanted = DagFilter(
            self._dag_ids, Pattern(pattern), tags=tuple(tags), owners=tuple(owners), paused=paused,
            active=active, has_errors=has_errors,
        )  # fmt: skip
        return await self._ask(dags.list_dags, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("GET /dags/{dag_id}")
    async def get_dag(self, dag_id: str) -> DagInfo:
        """Return an active DAG."""
        return await self._ask(dags.get_dag, dag_id)

    @operation("GET /dags/{dag_id}/details", is_large=True)
    async def get_dag_details(self, dag_id: str) -> DagDetails:
        """Return an active DAG with its tasks, its edges and its params, in the newest version."""
        return await read_details(self._context, dag_id, self._dag_ids)

    @operation("DELETE /dags/{dag_id}", permission=Permission.OPERATE, status=204)
    async def delete_dag(self, dag_id: str) -> None:
        """Delete a DAG that has left its file, with its runs and their logs."""
        await run_actions.delete_dag(self._context, self._actor, dag_id)

    @operation("POST /dags/{dag_id}/reparse", permission=Permission.OPERATE, status=202)
    async def reparse(self, dag_id: str) -> DagInfo:
        """Ask the scheduler to parse a DAG's file again, even if it has not changed."""
        found = await self.get_dag(dag_id)
        await self._act(dags.parse_again, found.file, dag_id)
        return found

    @operation("POST /dags/{dag_id}/pause", permission=Permission.OPERATE)
    async def pause(self, dag_id: str) -> DagInfo:
        """Pause a DAG: it gets no run, and none of its tasks begins."""
        return await self._act(dags.pause_dag, dag_id, paused=True, now=self._context.clock.now())

    @operation("POST /dags/{dag_id}/unpause", permission=Permission.OPERATE)
    async def unpause(self, dag_id: str) -> DagInfo:
        """Unpause a DAG: its due runs are created, and its tasks begin."""
        return await self._act(dags.pause_dag, dag_id, paused=False, now=self._context.clock.now())

    @operation(
        "GET /dags/{dag_id}/upcoming",
        arguments={"n": 2},
        answer=[
            {
                "logical_date": "2026-03-01T00:00:00Z", "data_interval_start": "2026-03-01T00:00:00Z",
                "data_interval_end": "2026-03-02T00:00:00Z", "run_after": "2026-03-02T00:00:00Z",
            },
        ],
    )  # fmt: skip
    async def upcoming(
        self, dag_id: str, n: Annotated[int, Meta(ge=1, le=MOST_UPCOMING)] = 1, *, now: Instant | None = None
    ) -> tuple[UpcomingRun, ...]:
        """Return the runs that the scheduler would create next if the clock stood still; also of a paused DAG.

        Args:
            n: How many at most.
            now: As if it were that instant.
        """
        return await upcoming(self._context, dag_id, n, now=now)

    @operation("GET /tags")
    async def list_tags(
        self, *, pattern: str | None = None, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[str]:
        """List the tags of the active DAGs, each once.

        Args:
            pattern: Part of the tag, in either case.
        """
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(dags.list_tags, Pattern(contains=pattern), self._dag_ids, paging)

    # Runs

    @operation(
        "POST /dags/{dag_id}/runs", permission=Permission.OPERATE, status=202,
        arguments={"conf": {"day": "2026-01-31"}},
        answer={"dag_id": "etl", "run_id": "manual__2026-02-01T08:00:00+00:00"},
    )  # fmt: skip
    async def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        logical_date: Instant | None = None,
        has_logical_date: bool = True,
        partition_key: str | None = None,
        note: str = "",
        run_after: Instant | None = None,
    ) -> DagRunKey:
        """Create a run of a DAG, and return its key.

        Args:
            conf: Overrides the DAG's params.
            run_id: By default `manual__` and the earliest start, or as the DAG's own timetable says.
            logical_date: By default the present instant.
            has_logical_date: Whether the run has a logical date and a data interval at all.
            partition_key: For a DAG that is scheduled by partitions.
            note: About the run, for people.
            run_after: The earliest start; by default at once.
        """
        if self._context.until_known is not None:
            await self._context.until_known(dag_id)
        wanted = Trigger(
            run_id=run_id, logical_date=logical_date, has_logical_date=has_logical_date,
            conf=conf or {}, partition_key=partition_key, note=note, run_after=run_after,
        )  # fmt: skip
        return (await run_actions.trigger_run(self._context, self._actor, dag_id, wanted)).key

    @operation("GET /runs", arguments={"dag_id": "etl", "state": ["failed"], "since": "2026-01-31T00:00:00Z"})
    async def list_runs(
        self,
        dag_id: str | None = None,
        *,
        state: Several[RunState] = (),
        run_type: Several[RunType] = (),
        since: Instant | None = None,
        until: Instant | None = None,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = NEWEST_FIRST,
    ) -> Page[RunInfo]:
        """List the runs of a DAG, or of all, newest first. A DAG whose file is gone keeps its runs.

        Args:
            state: Only runs in one of these states.
            run_type: Only runs of one of these types.
            since: Only runs that were to start at that instant or later (`run_after`).
            until: Only runs that were to start before that instant.
        """
        wanted = _runs_of(self._dag_ids, dag_id, None, state, run_type, since, until)
        return await self._ask(runs.list_runs, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("GET /dags/{dag_id}/runs/{run_id}")
    async def get_run(self, run: AnyRun) -> RunInfo:
        """Return a run, with its conf."""
        return await self._ask(runs.get_run, *run_key(run))

    @operation("GET /dags/{dag_id}/runs/{run_id}/wait", arguments={"seconds": 30})
    async def await_run(
        self, run: AnyRun, seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SECONDS)] = LONGEST_WAIT_SECONDS
    ) -> RunInfo:
        """Return a run when it has ended, or as it is after a time.

        Args:
            seconds: That time.
        """
        with anyio.move_on_after(seconds):
            async with aclosing(run_actions.wait_for_run(self._context, run_key(run))) as states:
                async for _ in states:
                    pass
        return await self.get_run(run)

    async def wait_run(self, run: AnyRun) -> RunInfo:
        """Return a run when it has ended. Cancelling this does not cancel the run.

        After a first answer, it goes on also while the database or the other process cannot be reached.
        """
        found = await self.await_run(run, 0)
        while found.state not in FINISHED_RUN_STATES:
            try:
                found = await self.await_run(run)
            except AsynschedError as exc:
                if not self._will_pass(exc):
                    raise
                await (self._context.clock if self.remote is None else self.remote.clock).sleep(RETRY_PAUSE)
        return found

    def _will_pass(self, error: AsynschedError) -> bool:
        """Return whether it is likely that the same request is answered later."""
        return isinstance(error, StoreUnavailable) or (self.remote is not None and self.remote.is_away(error))

    @operation("GET /dags/{dag_id}/runs/{run_id}/results", is_large=True)
    async def get_results(self, run: AnyRun) -> dict[str, Any]:
        """Return the results of a run by task_id: return values that its DAG names as such; a list for a mapped task.

        A DAG names them by `@result`, by `add_result`, or by the value that its `@dag` function returns.
        """
        return await xcoms.read_results(self._context, run_key(run))

    @operation("POST /dags/{dag_id}/runs/{run_id}/cancel", permission=Permission.OPERATE)
    async def cancel(self, run: AnyRun) -> RunInfo:
        """End a run that is queued or running: its tries are killed, waiting tasks are skipped, and the run fails."""
        await run_actions.cancel_run(self._context, self._actor, run_key(run))
        return await self.get_run(run)

    @operation("POST /dags/{dag_id}/runs/{run_id}/mark", permission=Permission.OPERATE, arguments={"state": "success"})
    async def mark_run(self, run: AnyRun, state: run_edits.MarkedAs) -> RunInfo:
        """End a run as `success` or `failed`, with its tasks; or queue an ended one again, with its tasks as they are.

        Running tasks are killed.
        """
        await run_actions.mark_run(self._context, self._actor, run_key(run), state)
        return await self.get_run(run)

    @operation(
        "POST /dags/{dag_id}/runs/{run_id}/clear", permission=Permission.OPERATE, is_large=True,
        arguments={"task_ids": ["load"], "downstream": True},
        answer=[{"task_id": "load", "map_index": -1, "state": "failed", "try_number": 2}],
    )  # fmt: skip
    async def clear(
        self,
        run: AnyRun,
        task_ids: Several[str] = (),
        *,
        upstream: bool = False,
        downstream: bool = False,
        only_failed: bool = False,
        only_running: bool = False,
        map_index: int | None = None,
        latest: bool = False,
        dry_run: bool = False,
    ) -> tuple[ChangedTask, ...]:
        """Run tasks of a run again; running ones are killed first. Returns them as they were before.

        Args:
            task_ids: The tasks; all of them if empty.
            upstream: Also the tasks upstream of them.
            downstream: Also the tasks downstream of them.
            only_failed: Of all these, only those that have failed, or whose upstream has.
            only_running: Of all these, only those that are running.
            map_index: Of the named tasks, only this instance of a mapped one.
            latest: Move the run to the newest version of its DAG first.
            dry_run: Change nothing, and return what would be cleared.
        """
        request = ClearTasks(
            tuple(task_ids), upstream, downstream, only_failed, only_running=only_running, map_index=map_index,
            latest=latest,
        )  # fmt: skip
        if dry_run:
            now = self._context.clock.now()
            return await self._ask(run_actions.preview_clear, run_key(run), request, now=now)
        return (
            await run_actions.clear_tasks(self._context, self._actor, run_key(run), Clear(request=request))
        ).instances

    @operation("GET /dags/{dag_id}/runs/{run_id}/callbacks")
    async def list_callbacks(
        self, run: AnyRun, *, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[CallbackInfo]:
        """List the callbacks of a run and of its tasks, in the order in which they were requested."""
        await self.get_run(run)
        return await self._ask(runs.list_callbacks, run_key(run), Paging(limit=limit, after=after, order_by=order_by))

    @operation(
        "PUT /dags/{dag_id}/runs/{run_id}/note",
        permission=Permission.OPERATE,
        arguments={"text": "The file came late."},
    )
    async def note_run(self, run: AnyRun, text: str) -> RunInfo:
        """Note something about a run, in place of an earlier note; an empty text removes it."""
        await run_actions.note_run(self._context, self._actor, run_key(run), text)
        return await self.get_run(run)

    @operation("DELETE /dags/{dag_id}/runs/{run_id}", permission=Permission.OPERATE, status=204)
    async def delete_run(self, run: AnyRun) -> None:
        """Delete a run that has ended, or has not begun, with its tasks, XComs and logs."""
        await run_actions.delete_run(self._context, self._actor, run_key(run))

    # Tasks

    @operation("GET /tasks", arguments={"dag_id": "etl", "run_id": "first", "state": ["failed"]})
    async def list_tasks(
        self,
        dag_id: str | None = None,
        run_id: str | None = None,
        *,
        task_id: str | None = None,
        state: Several[TaskState] = (),
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = (),
    ) -> Page[TaskInstanceInfo]:
        """List the task instances of a run, of a DAG, or of all.

        Args:
            state: Only task instances in one of these states.
        """
        wanted = TaskInstanceFilter(
            run=_runs_of(self._dag_ids, dag_id, run_id), task_ids=None if task_id is None else (task_id,),
            states=tuple(state) or None,
        )  # fmt: skip
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(task_instances.list_task_instances, wanted, paging)

    @operation("GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}")
    async def get_task(self, task: AnyTask) -> TaskInstanceInfo:
        """Return a task instance."""
        return await self._ask(task_instances.get_task_instance, task_key(task))

    @operation("GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/tries")
    async def list_tries(self, task: AnyTask) -> TriesInfo:
        """Return the tries of a task instance, the oldest first."""
        return await self._ask(task_instances.list_tries, task_key(task))

    @operation("GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/rendered")
    async def rendered_fields(
        self, task: AnyTask, *, try_number: Annotated[int, Meta(ge=1)] | None = None
    ) -> dict[str, Any]:
        """Return the template fields of a try as they were after rendering, with secrets masked.

        A try has them once it has ended or is deferred, if a template was rendered in them.

        Args:
            try_number: By default the newest.
        """
        info = await self.get_task(task)
        number = await newest_try(self._context, info) if try_number is None else try_number
        return await self._ask(fields_of_try, info.id, number)

    @operation("GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/links")
    async def links(self, task: AnyTask) -> dict[str, str | None]:
        """Return the addresses of a task instance's work in other systems, by their names; null: none was stored."""
        return await xcoms.list_links(self._context, task_key(task))

    @operation(
        "PUT /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/note", permission=Permission.OPERATE,
        arguments={"text": "Slow since Monday."},
    )  # fmt: skip
    async def note_task(self, task: AnyTask, text: str) -> TaskInstanceInfo:
        """Note something about a task instance, in place of an earlier note; an empty text removes it."""
        await self._act(run_edits.store_task_note, task_key(task), text, self._actor, self._context.clock.now())
        return await self.get_task(task)

    @operation(
        "POST /dags/{dag_id}/runs/{run_id}/tasks/mark", permission=Permission.OPERATE, is_large=True,
        arguments={"task_ids": ["load"], "state": "success"},
        answer=[{"task_id": "load", "map_index": -1, "state": "failed", "try_number": 2}],
    )  # fmt: skip
    async def mark(
        self,
        run: AnyRun,
        task_ids: Several[str],
        state: MarkedTaskState,
        *,
        upstream: bool = False,
        downstream: bool = False,
        map_index: int | None = None,
        dry_run: bool = False,
    ) -> tuple[ChangedTask, ...]:
        """Mark tasks of a run as ended, regardless of their own results; running ones are killed.

        Returns them as they were before. Tasks downstream that had failed because of them are cleared.

        Args:
            upstream: Also the tasks upstream of them.
            downstream: Also the tasks downstream of them.
            map_index: Of the named tasks, only this instance of a mapped one.
            dry_run: Change nothing, and return what would be marked.
        """
        request = MarkTasks(tuple(task_ids), state, upstream=upstream, downstream=downstream, map_index=map_index)
        if dry_run:
            now = self._context.clock.now()
            return await self._ask(run_edits.preview, run_key(run), request, now=now)
        return (await task_actions.mark_tasks(self._context, self._actor, run_key(run), Mark(request))).instances

    @operation(
        "POST /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/force", permission=Permission.OPERATE,
        arguments={"ignore": ["trigger_rule"]},
    )  # fmt: skip
    async def force(
        self,
        task: AnyTask,
        ignore: Several[str] = (),
        *,
        ignore_all: bool = False,
        ignore_state: bool = False,
        ignore_retry_period: bool = False,
    ) -> TaskInstanceInfo:
        """Start one task instance, and ignore some of its dependencies. It still waits for the others, and for limits.

        A run that has ended continues for this task.

        Args:
            ignore: The dependencies to ignore, by the names that `why` gives them.
            ignore_all: Ignore everything that can be ignored.
            ignore_state: Also if it has ended; or if it is running: it is killed first.
            ignore_retry_period: Also if its retry, or its next poke, is not due yet.
        """
        if unknown := sorted(set(ignore) - IGNORABLE):
            raise BadRequest(f"{unknown[0]!r} cannot be ignored. These can: {', '.join(sorted(IGNORABLE))}.")
        key = task_key(task)
        request = ForceTask(
            key.task_id, key.map_index, tuple(sorted(IGNORABLE if ignore_all else ignore)),
            ignore_state or ignore_all, ignore_retry_period or ignore_all,
        )  # fmt: skip
        await task_actions.force_task(self._context, self._actor, key.run, request)
        return await self.get_task(task)

    @operation("GET /questions")
    async def list_questions(
        self,
        dag_id: str | None = None,
        *,
        limit: Annotated[int, Meta(ge=1, le=hitl.MOST_ROWS)] = hitl.MOST_ROWS,
        after: str | None = None,
        order_by: OrderBy = ("created_at",),
    ) -> Page[WaitingQuestion]:
        """List the questions that tasks wait with for a person's answer, the longest wait first."""
        wanted = QuestionFilter(dag_ids=self._dag_ids, equal={} if dag_id is None else {"dag_id": dag_id})
        return await self._ask(hitl.list_waiting, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation(
        "POST /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/answer", permission=Permission.OPERATE,
        arguments={"task_id": "approve", "options": ["Approve"]},
    )  # fmt: skip
    async def answer(
        self, task: AnyTask, options: Several[str], *, params: Mapping[str, Any] | None = None
    ) -> TaskInstanceInfo:
        """Answer the question of a task, which then goes on.

        Args:
            options: One of the question's options; several if it allows that.
            params: Values of the params that it asks for; others keep their defaults.
        """
        key = task_key(task)
        read = await hitl.read_before(self._context, key, hitl.reading(options, params or {}))
        now = self._context.clock.now()
        await self._act(hitl.answer, key, read, user=self._actor, now=now)
        return await self.get_task(task)

    @operation(
        "GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/logs",
        arguments={"try_number": 1, "start": 0},
        answer={"text": "1200 rows\n", "start": 0, "end": 10, "is_last": True, "exists": True, "size": 10},
    )
    async def task_logs(
        self,
        task: AnyTask,
        *,
        try_number: Annotated[int, Meta(ge=1)] | None = None,
        start: Annotated[int, Meta(ge=0)] = 0,
        n_bytes: Annotated[int, Meta(ge=1, le=MOST_BYTES)] = MOST_BYTES,
    ) -> LogPart:
        """Return a part of a try's log. Give its `end` as `start` to get the next part.

        Args:
            try_number: By default the newest.
            start: The first byte.
            n_bytes: How long the part may be.
        """
        return await read_log(
            self._context, task_key(task), await self._try(task, try_number), start=start, n_bytes=n_bytes
        )

    @operation(
        "GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/logs/lines", is_large=True, arguments={"text": "error"}
    )
    async def find_in_log(
        self, task: AnyTask, text: str, *, try_number: Annotated[int, Meta(ge=1)] | None = None
    ) -> tuple[FoundLine, ...]:
        """Return the first lines of a try's log that have a text, in either case.

        Args:
            try_number: By default the newest.
        """
        return tuple(await find_in_log(self._context, task_key(task), await self._try(task, try_number), text))

    @operation("GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/logs/range", arguments={"first": 100, "last": 199})
    async def log_lines(
        self,
        task: AnyTask,
        first: Annotated[int, Meta(ge=1)] = 1,
        last: Annotated[int, Meta(ge=1)] | None = None,
        *,
        try_number: Annotated[int, Meta(ge=1)] | None = None,
    ) -> LogPart:
        """Return lines of a try's log by their numbers, up to 1 MiB of them; `task_logs` goes on at its `end`.

        Args:
            first: The number of the first line, from 1.
            last: The number of the last line; None: as many as fit.
            try_number: By default the newest.
        """
        if last is not None and last < first:
            raise BadRequest(f"The last line, {last}, is before the first, {first}.")
        return await read_lines(self._context, task_key(task), await self._try(task, try_number), first, last)

    @operation("GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/logs/tail", arguments={"n_lines": 20})
    async def log_tail(
        self,
        task: AnyTask,
        n_lines: Annotated[int, Meta(ge=1)] = 10,
        *,
        try_number: Annotated[int, Meta(ge=1)] | None = None,
    ) -> LogPart:
        """Return the last lines of a try's log, up to 1 MiB of them; `task_logs` goes on at its `end`.

        Args:
            n_lines: How many at most.
            try_number: By default the newest.
        """
        return await read_tail(self._context, task_key(task), await self._try(task, try_number), n_lines)

    async def _try(self, task: AnyTask, wanted: int | None) -> int:
        """Return the number of a try: by default of the newest, or of the first one before that has begun."""
        return wanted or max(1, await newest_try(self._context, await self.get_task(task)))

    @operation("GET /xcoms", arguments={"dag_id": "etl", "run_id": "first", "task_id": "load"})
    async def xcoms(
        self,
        dag_id: str | None = None,
        run_id: str | None = None,
        *,
        task_id: str | None = None,
        key: str | None = None,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = (),
    ) -> Page[XComInfo]:
        """List the XComs of a run, of a DAG, or of all, without their values."""
        wanted = XComFilter(
            run=_runs_of(self._dag_ids, dag_id, run_id), task_ids=None if task_id is None else (task_id,),
            keys=None if key is None else (key,),
        )  # fmt: skip
        return await self._ask(xcoms.list_xcoms, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("GET /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/xcoms/{key:path}", is_large=True)
    async def get_xcom(self, task: AnyTask, key: str = "return_value") -> XComValue:
        """Return an XCom with its value, as it travels between tasks."""
        return await xcoms.get_xcom(self._context, task_key(task), key)

    @operation(
        "PUT /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/xcoms/{key:path}", permission=Permission.OPERATE,
        arguments={"key": "rows", "value": 1200},
    )  # fmt: skip
    async def set_xcom(self, task: AnyTask, key: str, value: Any) -> XComInfo:
        """Create or replace an XCom of a task instance, for the tasks that have not read it yet.

        Args:
            value: Of JSON.
        """
        return await self._act(xcoms.put_xcom, task_key(task), key, value, now=self._context.clock.now())

    @operation(
        "DELETE /dags/{dag_id}/runs/{run_id}/tasks/{task_id}/xcoms/{key:path}", permission=Permission.OPERATE,
        status=204, arguments={"key": "rows"},
    )  # fmt: skip
    async def delete_xcom(self, task: AnyTask, key: str) -> None:
        """Delete an XCom of a task instance."""
        await self._act(xcoms.delete_xcom, task_key(task), key)

    # Versions

    @operation("GET /dags/{dag_id}/versions")
    async def list_versions(
        self, dag_id: str, *, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ("-number",)
    ) -> Page[VersionInfo]:
        """List the versions of a DAG, newest first."""
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(dag_versions.list_versions, VersionFilter(frozenset({dag_id})), paging)

    @operation("GET /dags/{dag_id}/source")
    async def get_source(self, dag_id: str, *, number: int | None = None) -> SourceInfo:
        """Return the text of a DAG's file in one of its versions.

        Args:
            number: Of the version; None: the newest.
        """
        return dag_versions.redacted(await self._ask(dag_versions.get_source, dag_id, number), self._dag_ids)

    # Backfills and assets

    @operation(
        "POST /dags/{dag_id}/backfills", permission=Permission.OPERATE, status=201,
        arguments={"dag_id": "daily", "from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-31T00:00:00Z"},
    )  # fmt: skip
    async def backfill(
        self,
        dag_id: str,
        from_date: Instant,
        to_date: Instant,
        *,
        reprocess: Reprocess = "none",
        is_reverse: bool = False,
        max_active_runs: Annotated[int, Meta(ge=1)] = 10,
        conf: Mapping[str, Any] | None = None,
        keeps_version: bool = False,
    ) -> BackfillInfo:
        """Create the runs that a DAG's schedule has in a span of the past.

        Args:
            from_date: The first logical date.
            to_date: The last logical date.
            reprocess: Existing runs to run again: none, those that have failed, or all that have ended (completed).
            is_reverse: Whether the newest date comes first.
            max_active_runs: How many of its runs are active at once, instead of the DAG's own limit.
            conf: Overrides the DAG's params in each run.
            keeps_version: Whether existing runs keep the version of the DAG that they had; otherwise they move to the
                newest one.
        """
        plan = BackfillPlan(
            dag_id, from_date, to_date, reprocess=reprocess, is_reverse=is_reverse, max_active_runs=max_active_runs,
            conf=conf or {}, keeps_version=keeps_version,
        )  # fmt: skip
        return backfill_info(await backfills.make_backfill(self._context, self._actor, plan))

    @operation(
        "POST /dags/{dag_id}/backfills/plan", permission=Permission.OPERATE, is_large=True,
        arguments={"dag_id": "daily", "from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-31T00:00:00Z"},
    )  # fmt: skip
    async def plan_backfill(
        self,
        dag_id: str,
        from_date: Instant,
        to_date: Instant,
        *,
        reprocess: Reprocess = "none",
        is_reverse: bool = False,
    ) -> tuple[BackfillDateInfo, ...]:
        """Return the dates that a backfill would have, in the order in which they would run. Nothing is created.

        Args:
            from_date: The first logical date.
            to_date: The last logical date.
            reprocess: Existing runs to run again: none, those that have failed, or all that have ended (completed).
            is_reverse: Whether the newest date comes first.
        """
        plan = BackfillPlan(dag_id, from_date, to_date, reprocess=reprocess, is_reverse=is_reverse)
        return tuple(map(backfills.planned_date, await backfills.plan_backfill(self._context, plan)))

    @operation("GET /backfills")
    async def list_backfills(
        self,
        dag_id: str | None = None,
        *,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = ("-id",),
    ) -> Page[BackfillInfo]:
        """List the backfills of a DAG, or of all, newest first."""
        paging = Paging(limit=limit, after=after, order_by=order_by)
        found = await self._ask(backfills.list_backfills, BackfillFilter(dag_id, self._dag_ids), paging)
        return Page(tuple(map(backfill_info, found.items)), found.after)

    @operation("GET /dags/{dag_id}/backfills/{backfill_id}")
    async def get_backfill(self, dag_id: str, backfill_id: int) -> BackfillInfo:
        """Return a backfill of a DAG."""
        found = await self._ask(backfills.get_backfill, backfill_id)
        if found.dag_id != dag_id:
            raise NotFound("backfill", str(backfill_id), where=f"the DAG {dag_id!r}")
        return backfill_info(found)

    @operation("GET /dags/{dag_id}/backfills/{backfill_id}/dates")
    async def list_backfill_dates(
        self,
        dag_id: str,
        backfill_id: int,
        *,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = (),
    ) -> Page[BackfillDateInfo]:
        """List the dates of a backfill with their runs, in the order in which they run."""
        await self.get_backfill(dag_id, backfill_id)
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(backfills.list_dates, backfill_id, paging)

    @operation(
        "POST /dags/{dag_id}/backfills/{backfill_id}/pause", permission=Permission.OPERATE, arguments={"paused": True}
    )
    async def pause_backfill(self, dag_id: str, backfill_id: int, *, paused: bool = True) -> BackfillInfo:
        """Start no further runs of a backfill, or go on; its active runs continue."""
        await self.get_backfill(dag_id, backfill_id)
        return backfill_info(await self._act(backfills.pause_backfill, backfill_id, paused=paused))

    @operation("POST /dags/{dag_id}/backfills/{backfill_id}/cancel", permission=Permission.OPERATE)
    async def cancel_backfill(self, dag_id: str, backfill_id: int) -> BackfillInfo:
        """End a backfill: its queued runs count as failed, its running ones continue."""
        await self.get_backfill(dag_id, backfill_id)
        now = self._context.clock.now()
        return backfill_info(await self._act(backfills.cancel_backfill, backfill_id, actor=self._actor, now=now))

    @operation("GET /assets")
    async def list_assets(
        self, *, pattern: str | None = None, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[AssetInfo]:
        """List the assets, and the DAGs that name them.

        Args:
            pattern: Part of the name.
        """
        wanted = AssetFilter(name=Pattern(pattern), seen_dags=self._dag_ids)
        return await self._ask(assets.list_assets, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("GET /assets/{asset_id}")
    async def get_asset(self, asset_id: int) -> AssetInfo:
        """Return an asset."""
        return await self._ask(assets.get_asset, asset_id, self._dag_ids)

    @operation("GET /assets/events")
    async def list_asset_events(
        self,
        asset_id: int | None = None,
        *,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = ("-id",),
    ) -> Page[EventInfo]:
        """List the updates of an asset, or of all, newest first, with the runs that they triggered."""
        wanted = EventFilter(asset_id=asset_id, seen_dags=self._dag_ids)
        return await self._ask(assets.list_events, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation(
        "POST /assets/{asset_id}/events", permission=Permission.OPERATE, status=201, arguments={"extra": {"rows": 1200}}
    )
    async def asset_changed(
        self, asset_id: int, extra: Mapping[str, Any] | None = None, *, partition_key: str | None = None
    ) -> EventInfo:
        """Record an update of an asset: DAGs that wait for it may run.

        Args:
            extra: JSON values that describe the update; tasks find them in the event.
            partition_key: The partition that was updated.
        """
        now = self._context.clock.now()
        return await self._act(assets.create_event, asset_id, extra or {}, partition_key=partition_key, now=now)

    @operation(
        "POST /assets/{asset_id}/materialize", permission=Permission.OPERATE, status=202,
        arguments={"conf": {"day": "2026-01-31"}},
        answer={"dag_id": "etl", "run_id": "manual__2026-02-01T08:00:00+00:00"},
    )  # fmt: skip
    async def materialize(self, asset_id: int, conf: Mapping[str, Any] | None = None) -> DagRunKey:
        """Trigger the only DAG with a task that updates an asset, and return the key of the run.

        It needs the right to operate that DAG.

        Args:
            conf: Overrides the DAG's params.
        """
        dag_id = await self._ask(assets.only_producer, asset_id, seen_dags=self._dag_ids)
        if self._operated is not None and dag_id not in self._operated:
            raise NotFound("DAG that updates the asset, and that you may operate,", str(asset_id))
        wanted = Trigger(conf=conf or {}, run_type=DagRunType.ASSET_MATERIALIZATION)
        return (await run_actions.trigger_run(self._context, self._actor, dag_id, wanted)).key

    @operation("GET /assets/queued", arguments={"dag_id": "etl"})
    async def list_queued_events(
        self,
        dag_id: str | None = None,
        asset_id: int | None = None,
        *,
        before: Instant | None = None,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = (),
    ) -> Page[QueuedInfo]:
        """List the assets whose events wait for a run of a DAG, or of any, which also waits for others.

        Args:
            before: Only events before that instant.
        """
        wanted = QueuedFilter(dag_id=dag_id, asset_id=asset_id, before=before, seen_dags=self._dag_ids)
        return await self._ask(assets.list_queued, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("DELETE /dags/{dag_id}/assets/queued", permission=Permission.OPERATE, arguments={"asset_id": 7})
    async def delete_queued_events(
        self, dag_id: str, asset_id: int | None = None, *, before: Instant | None = None
    ) -> int:
        """Forget events that wait for a run of a DAG, and return how many.

        Args:
            asset_id: Only events of this asset.
            before: Only events before that instant.
        """
        return await self._act(assets.delete_queued, dag_ids=(dag_id,), asset_id=asset_id, before=before)

    # Explanations and predictions

    @operation(
        "GET /why/{dag_id}",
        arguments={"run_id": "first", "task_id": "load"},
        answer={
            "subject": "load of first of etl", "state": "scheduled", "answer": "It waits for a slot of the pool db.",
            "reasons": [{"rule": "pool", "text": "All 4 slots of the pool db are taken", "release": "one is free"}],
        },
    )  # fmt: skip
    async def why(
        self, dag_id: str, run_id: str | None = None, task_id: str | None = None, map_index: int = -1
    ) -> Explanation:
        """Explain why a DAG has no run, a run does not go on, or a task does not start; or why it ended as it did.

        Args:
            run_id: A run of the DAG; None asks about the DAG.
            task_id: A task of the run; None asks about the run.
            map_index: Which instance of a mapped task; -1 for other tasks.
        """
        return await why(self._context, dag_id, run_id, task_id, map_index, self._dag_ids)

    @operation("GET /late")
    async def list_late(self) -> Late:
        """List the DAGs whose run was due, and the runs that do not start or go on, with the first line of `why`.

        The answer is some seconds old at most, longer if many runs are active.
        """
        return await list_late(self._context, self._dag_ids)

    @operation(
        "POST /simulate", arguments={"start": "2026-03-01T00:00:00Z", "end": "2026-04-01T00:00:00Z", "pools": {"db": 4}}
    )
    async def simulate(
        self,
        start: Instant,
        end: Instant,
        *,
        duration: Annotated[float, Meta(ge=0)] | None = None,
        failure_rate: Annotated[float, Meta(ge=0, le=1)] | None = None,
        seed: int = 0,
        pools: Mapping[str, Slots] | None = None,
        unpause: bool = False,
        dag_id: str | None = None,
        seconds: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)] | None = None,
    ) -> Simulated:
        """Simulate a scheduler in a span of time. No task is executed, and nothing is changed.

        Args:
            start: The scheduler is up to date at that instant.
            end: Not part of the span.
            duration: Seconds of each try; by default the median of its task's newest runs, or a minute.
            failure_rate: Share of the tries that fail; by default only tasks fail that have never succeeded.
            seed: A different one makes different tries fail.
            pools: Slots by name, instead of the present ones; -1 means no limit.
            unpause: As if no DAG were paused.
            dag_id: Answer with the runs of this DAG alone; all DAGs are simulated, as they share pools and assets.
            seconds: Of work, after which the simulation ends where it is: `end` of the answer says where.
        """
        if dag_id is not None:
            if self._dag_ids is not None and dag_id not in self._dag_ids:
                raise NotFound("DAG", dag_id)
            await self.get_dag(dag_id)
        return await simulate(
            self._context, start, end, duration=duration, failure_rate=failure_rate, seed=seed, pools=pools,
            unpause=unpause, dag_id=dag_id, seconds=seconds, seen_dags=self._dag_ids,
        )  # fmt: skip

    @operation("POST /preview", permission=Permission.OPERATE, arguments={"where": "origin/faster-etl", "hours": 24})
    async def preview(
        self,
        where: str,
        against: str | None = None,
        *,
        hours: Annotated[float, Meta(ge=0, le=LONGEST_HOURS)] = 24,
        pools: Mapping[str, Slots] | None = None,
    ) -> Preview:
        """Return the changes that a commit of the DAG folder's Git repository would make before it is live.

        Args:
            where: The commit: a branch, a tag, a hash.
            against: Another commit to compare with; by default the DAGs that the database has.
            hours: Simulate this span of time from now on; 0 for no simulation.
            pools: Slots of pools that exist or will, by name.
        """
        return await preview_commit(self._context, where, against, hours=hours, pools=dict(pools or {}))

    # Pools, variables and connections

    @operation("GET /pools")
    async def list_pools(
        self, *, pattern: str | None = None, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[PoolInfo]:
        """List the pools, and their slots."""
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(pools.list_pools, Pattern(pattern), paging)

    @operation("GET /pools/{name:path}", arguments={"name": "db"})
    async def get_pool(self, name: str) -> PoolInfo:
        """Return a pool."""
        return await self._ask(pools.get_pool, name)

    @operation(
        "PUT /pools/{name:path}", permission=Permission.OPERATE,
        arguments={"name": "db", "slots": 4, "description": "Connections to the warehouse."},
        answer={
            "name": "db", "slots": 4, "description": "Connections to the warehouse.", "include_deferred": False,
            "occupied_slots": 1, "running_slots": 1, "queued_slots": 0, "scheduled_slots": 2, "deferred_slots": 0,
            "open_slots": 3,
        },
    )  # fmt: skip
    async def set_pool(
        self, name: str, slots: Slots, *, description: str = "", include_deferred: bool = False
    ) -> PoolInfo:
        """Create or change a pool.

        Args:
            slots: How many its tasks may take at once; -1: no limit.
            include_deferred: Whether deferred tasks count.
        """
        return await self._act(pools.set_pool, name, slots, description=description, include_deferred=include_deferred)

    @operation("DELETE /pools/{name:path}", permission=Permission.OPERATE, arguments={"name": "db"})
    async def delete_pool(self, name: str) -> PoolInfo:
        """Delete a pool, which is returned. Tasks that name it wait until a pool of that name exists again."""
        return await self._act(pools.delete_pool, name)

    @operation("GET /variables", permission=Permission.OPERATE)
    async def list_variables(
        self, *, pattern: str | None = None, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[VariableInfo]:
        """List the variables, without their secrets; a long value is left out."""
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(secrets.list_variables, Pattern(pattern), paging)

    @operation(
        "GET /variables/{key:path}", permission=Permission.OPERATE,
        arguments={"key": "shop/region"},
        answer={"key": "shop/region", "value": "eu", "description": ""},
    )  # fmt: skip
    async def get_variable(self, key: str) -> VariableInfo:
        """Return a variable; the value of one whose name sounds secret is hidden."""
        return await self._ask(secrets.get_variable, key)

    @operation(
        "PUT /variables/{key:path}", permission=Permission.OPERATE, arguments={"key": "shop/region", "value": "eu"}
    )
    async def set_variable(self, key: str, value: str, *, description: str = "") -> VariableInfo:
        """Create or replace a variable."""
        return await self._act(secrets.set_variable, key, value, description)

    @operation(
        "DELETE /variables/{key:path}", permission=Permission.OPERATE, status=204, arguments={"key": "shop/region"}
    )
    async def delete_variable(self, key: str) -> None:
        """Delete a variable."""
        await self._act(secrets.delete_variable, key)

    @operation("GET /connections", permission=Permission.OPERATE)
    async def list_connections(
        self, *, pattern: str | None = None, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[ConnectionInfo]:
        """List the connections, without their secrets; the fields of a long one are left out."""
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(secrets.list_connections, Pattern(pattern), paging)

    @operation("GET /connections/{conn_id:path}", permission=Permission.OPERATE)
    async def get_connection(self, conn_id: str) -> ConnectionInfo:
        """Return a connection, without its secrets."""
        return await self._ask(secrets.get_connection, conn_id)

    @operation(
        "POST /connections/{conn_id:path}", permission=Permission.ADMINISTER, status=201,
        arguments={"parts": {"conn_type": "postgres", "host": "db", "login": "etl", "port": 5432}},
    )  # fmt: skip
    async def add_connection(self, conn_id: str, parts: Mapping[str, Any]) -> ConnectionInfo:
        """Create a connection.

        Args:
            parts: conn_type, description, host, schema, login, password, port and extra; or uri.
        """
        return await self._act(secrets.create_connection, conn_id, parts)

    @operation(
        "PATCH /connections/{conn_id:path}", permission=Permission.ADMINISTER, arguments={"parts": {"host": "db2"}}
    )
    async def change_connection(self, conn_id: str, parts: Mapping[str, Any]) -> ConnectionInfo:
        """Change some parts of a connection; the others stay, and so does a secret that is given as its mask `***`.

        Args:
            parts: Of conn_type, description, host, schema, login, password, port and extra.
        """
        return await self._act(secrets.change_connection, conn_id, parts)

    @operation("DELETE /connections/{conn_id:path}", permission=Permission.ADMINISTER, status=204)
    async def delete_connection(self, conn_id: str) -> None:
        """Delete a connection."""
        await self._act(secrets.delete_connection, conn_id)

    # Users and tokens

    @operation("GET /users", permission=Permission.ADMINISTER)
    async def list_users(
        self, *, pattern: str | None = None, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[UserInfo]:
        """List the users.

        Args:
            pattern: Part of the name.
        """
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(users.list_users, Pattern(pattern), paging)

    @operation("GET /users/{name:path}", permission=Permission.ADMINISTER)
    async def get_user(self, name: str) -> UserInfo:
        """Return a user."""
        return await self._ask(users.get_user, name)

    @operation(
        "POST /users", permission=Permission.ADMINISTER, status=201,
        arguments={"name": "ada", "roles": ["operator"], "password": "a long secret"},
    )  # fmt: skip
    async def create_user(self, name: str, roles: Several[str], *, password: str | None = None) -> UserInfo:
        """Add a user.

        Args:
            roles: viewer, operator, admin, or names that DAGs have in their `access_control`.
            password: None: the user signs in at a proxy or a provider, or has tokens only.
        """
        hashed = None if password is None else await to_thread.run_sync(users.hash_password, password)
        now = self._context.clock.now()
        return await self._act(users.create_user, name, roles, password=hashed, now=now)

    @operation("PUT /users/{name:path}/roles", permission=Permission.ADMINISTER, arguments={"roles": ["operator"]})
    async def set_user_roles(self, name: str, roles: Several[str]) -> UserInfo:
        """Give a user other roles, which count from the next request on; without any, the user is disabled."""
        return await self._act(users.set_roles, name, roles) if roles else await self.disable_user(name)

    @operation("POST /users/{name:path}/disable", permission=Permission.ADMINISTER)
    async def disable_user(self, name: str) -> UserInfo:
        """Take all roles from a user, and end the sessions and tokens. `set_user_roles` gives roles again."""
        return await self._act(users.disable_user, name)

    @operation("DELETE /users/{name:path}", permission=Permission.ADMINISTER, status=204)
    async def delete_user(self, name: str) -> None:
        """Delete a user, with all sessions and tokens."""
        await self._act(users.delete_user, name)

    @operation(
        "PUT /users/{name:path}/password",
        permission=Permission.ADMINISTER,
        status=204,
        arguments={"password": "a long secret"},
    )
    async def set_user_password(self, name: str, password: str) -> None:
        """Give a user another password, and end the sessions; personal tokens stay."""
        hashed = await to_thread.run_sync(users.hash_password, password)
        await self._act(users.set_password, name, password=hashed)

    @operation("GET /users/{name:path}/sessions", permission=Permission.ADMINISTER)
    async def list_user_sessions(
        self, name: str, *, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[TokenInfo]:
        """List the browsers in which a user is signed in."""
        wanted = TokenFilter(now=self._context.clock.now(), owner=name)
        return await self._ask(users.list_sessions, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("DELETE /users/{name:path}/sessions/{session_id}", permission=Permission.ADMINISTER, status=204)
    async def end_user_session(self, name: str, session_id: int) -> None:
        """Sign one of a user's browsers out."""
        await self._act(users.end_session, session_id, name)

    @operation("GET /users/{name:path}/tokens", permission=Permission.ADMINISTER)
    async def list_user_tokens(
        self, name: str, *, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[TokenInfo]:
        """List a user's tokens for programs that have not expired, without their secrets."""
        wanted = TokenFilter(now=self._context.clock.now(), owner=name)
        return await self._ask(users.list_tokens, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("DELETE /users/{name:path}/tokens/{token_id}", permission=Permission.ADMINISTER, status=204)
    async def end_user_token(self, name: str, token_id: int) -> None:
        """End one of a user's tokens immediately."""
        await self._act(users.delete_token, token_id, name)

    @operation("GET /sessions")
    async def list_sessions(
        self, *, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[TokenInfo]:
        """List the browsers in which you are signed in."""
        wanted = self._own_issuer.own(self._context.clock.now())
        return await self._ask(users.list_sessions, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("DELETE /sessions/{session_id}", status=204)
    async def end_session(self, session_id: int) -> None:
        """Sign one of your own browsers out. With a token, only one that may do no more than the token allows."""
        await self._act(users.end_own_session, self._own_issuer, session_id)

    @operation("GET /tokens")
    async def list_tokens(
        self, *, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[TokenInfo]:
        """List your own tokens for programs that have not expired, without their secrets."""
        wanted = self._own_issuer.own(self._context.clock.now())
        return await self._ask(users.list_tokens, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("POST /tokens", status=201, arguments={"label": "nightly report", "scope": "view", "days": 30})
    async def create_token(
        self,
        label: str = "",
        *,
        scope: Scope = "view",
        dag_ids: Several[str] | None = None,
        days: Annotated[float, Meta(gt=0, le=LONGEST_TOKEN.days)] = 90,
    ) -> NewToken:
        """Make a token of your own, and return it with its secret, which is shown this once.

        It allows at most what you may yourself: with a token, what that token allows, and until it ends.

        Args:
            label: Its purpose.
            scope: The most that it allows.
            dag_ids: Only for these DAGs; None: for all that you may see.
            days: Its lifetime.
        """
        return await self._act(
            users.issue_token, self._own_issuer, label, scope=scope, dag_ids=dag_ids, now=self._context.clock.now(),
            lasts=timedelta(days=days),
        )  # fmt: skip

    @operation("DELETE /tokens/{token_id}", status=204)
    async def revoke_token(self, token_id: int) -> None:
        """End one of your own tokens immediately."""
        await self._act(users.revoke_token, self._own_issuer, token_id)

    @property
    def _own_issuer(self) -> Issuer:
        if self._issuer is None:
            raise AsynschedError(f"{self._actor} is no user of this database, and can have no tokens.")
        return self._issuer

    # What goes on

    @operation("GET /deadlines", arguments={"dag_id": "etl", "state": ["missed"], "since": "2026-01-31T00:00:00Z"})
    async def list_deadlines(
        self,
        dag_id: str | None = None,
        run_id: str | None = None,
        *,
        state: Several[DeadlineState] = (),
        since: Instant | None = None,
        until: Instant | None = None,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = ("-due_at",),
    ) -> Page[DeadlineInfo]:
        """List the deadlines of a run, of a DAG's runs, or of all, the latest first.

        Args:
            state: Only deadlines in one of these states.
            since: Only deadlines that are due at that instant or later.
            until: Only deadlines that are due before that instant.
        """
        wanted = DeadlineFilter(
            allowed=self._dag_ids, dag_id=dag_id, run_id=run_id, states=tuple(state) or None,
            due_at=Range(gte=since, lt=until),
        )  # fmt: skip
        return await self._ask(deadlines.list_deadlines, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("GET /dags/{dag_id}/runs/{run_id}/deadlines/{number}")
    async def get_deadline(self, run: AnyRun, number: int) -> DeadlineInfo:
        """Return a deadline of a run.

        Args:
            number: Its place among the deadlines of the DAG, from 0.
        """
        return await self._ask(deadlines.get_deadline, run_key(run), number)

    @operation("GET /import-errors")
    async def list_import_errors(
        self, *, file: str | None = None, limit: Limit = USUAL_ROWS, after: str | None = None, order_by: OrderBy = ()
    ) -> Page[ImportErrorInfo]:
        """List the errors of DAG files.

        Args:
            file: Only those of this file, relative to the DAG folder.
        """
        wanted = ImportErrorFilter(dag_ids=self._dag_ids, file=file)
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(import_errors.list_import_errors, wanted, paging)

    @operation("GET /warnings")
    async def list_warnings(
        self,
        *,
        kind: Several[str] = (),
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = (),
    ) -> Page[WarningInfo]:
        """List the warnings about DAGs and their files.

        Args:
            kind: Only warnings of these kinds, such as `doubtful` or `unstable`.
        """
        paging = Paging(limit=limit, after=after, order_by=order_by)
        return await self._ask(dags.list_warnings, self._dag_ids, tuple(kind) or None, paging)

    @operation("GET /audit")
    async def list_audit(
        self,
        *,
        dag_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        limit: Limit = USUAL_ROWS,
        after: str | None = None,
        order_by: OrderBy = ("-id",),
    ) -> Page[AuditRow]:
        """List who did what from outside, newest first.

        Args:
            action: Such as `dag.pause`.
            since: Only what was done after that instant.
            until: Only what was done before that instant.
        """
        equal = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "actor": actor, "action": action}
        wanted = AuditFilter(
            dag_ids=self._dag_ids, equal={name: value for name, value in equal.items() if value is not None},
            after=since, before=until,
        )  # fmt: skip
        return await self._ask(audit.list_audit, wanted, Paging(limit=limit, after=after, order_by=order_by))

    @operation("GET /schedulers")
    async def list_schedulers(self) -> tuple[SchedulerInfo, ...]:
        """List the schedulers that have not stopped, with the number of runs and task instances that each has."""
        rows = await self._ask(schedulers.unended)
        return await to_thread.run_sync(schedulers.with_states, rows, self._context.clock.now())

    @operation("GET /plugins", permission=Permission.OPERATE)
    async def list_plugins(self) -> tuple[PluginRow, ...]:
        """List the plugins and policies, and the errors of others. A process loads them for the answer."""
        return tuple(await plugins.list_plugins(self._context.settings))

    @operation("GET /providers")
    async def list_providers(self) -> tuple[ProviderInfo, ...]:
        """List the installed provider packages."""
        return tuple(await to_thread.run_sync(plugins.list_providers))

    @operation("GET /health")
    async def health(self) -> Health:
        """Return the health of the home's scheduler: the age of every loop, and its oldest step. Raises NotServing."""
        return await to_thread.run_sync(health_of_home, self._context.home)

    async def events(
        self, since: int | None = None, *, dag_id: str | None = None, run_id: str | None = None
    ) -> AsyncIterator[Change | Missed]:
        """Iterate over the changes of runs and task instances, each once it is stored; see `Scheduler.events`.

        A remote client connects again by itself, and goes on after the last change that it has given. Close the
        iterator when you leave it early: `async with aclosing(client.events()) as events`.

        Args:
            since: Begin after the change with this number; 0: with the oldest that is stored; None: with the present.
        """
        if self.remote is not None:
            async with aclosing(self.remote.events(since, dag_id, run_id)) as events:
                async for event in events:
                    yield event
            return
        feed = self._context.feed
        if feed is None:
            raise NoEvents
        async with feed.read(since, dag_id=dag_id, run_id=run_id) as reader:
            async for event in reader:
                yield event


class LocalClient(Client):
    """A client that answers in this process.

    Args:
        find_context: Returns the context in which it answers.
        actor: For the audit.
        dag_ids: The DAGs that lists may show; None: all.
        issuer: Makes the actor's tokens; None: they can have none.
        operated: The DAGs on which the actor may act; None: all.
    """

    def __init__(
        self,
        find_context: Callable[[], QueryContext],
        actor: str,
        dag_ids: frozenset[str] | None = None,
        issuer: Issuer | None = None,
        operated: frozenset[str] | None = None,
    ) -> None:
        self.remote = None
        self._find_context, self._actor, self._issuer = find_context, actor, issuer
        self._dag_ids, self._operated = dag_ids, operated


def _runs_of(
    allowed: frozenset[str] | None,
    dag_id: str | None,
    run_id: str | None,
    state: Several[RunState] = (),
    run_type: Several[RunType] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> RunFilter:
    return RunFilter(
        allowed=allowed, dag_ids=None if dag_id is None else (dag_id,), run_ids=None if run_id is None else (run_id,),
        states=tuple(state) or None, run_types=tuple(run_type) or None, run_after=Range(gte=since, lt=until),
    )  # fmt: skip
