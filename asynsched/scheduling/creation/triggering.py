"""Runs and asset updates that a person, a task, or the program that embeds the scheduler requests."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from anyio import to_thread
from msgspec.structs import replace
from sqlalchemy import Connection

from asynsched.authoring.assets import Asset, checked_extra
from asynsched.authoring.exceptions import ParamValidationError
from asynsched.authoring.json_values import check_json
from asynsched.authoring.params import Param
from asynsched.bell import Hint
from asynsched.channels import Channels, RunCreated, RunEdited, TaskReady
from asynsched.clock import Clock
from asynsched.errors import AlreadyExists, DagError, KeysNeeded, NotFound, StoreError, StoreUnavailable
from asynsched.keys import LATEST, DagRunKey
from asynsched.protocol.frames import MAX_VALUE_BYTES, UNENCODABLE, mebibytes
from asynsched.protocol.messages import Launch, Reply, Request
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import MAX_ID_LENGTH, AnswersForRun, SerializedDag, TimetableQuestion
from asynsched.states import RUN_TYPES_ON_REQUEST, DagRunState, DagRunType
from asynsched.store.assets import AssetEventRow, get_asset, record_events
from asynsched.store.audit import acts_since, record_audit
from asynsched.store.dags.dags import current_version, get_dag, near_dag_ids
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import free_run_id, get_run, insert_run, insert_runs, run_id_of, run_of_date
from asynsched.store.runs.notes import put_note
from asynsched.store.runs.requests import ClearTasks
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.schedulers import notify
from asynsched.store.schema import DagRunRow, DagVersionRow, NoteRow
from asynsched.timetables import CronPartitionTimetable, DataInterval, PartitionedAtRuntime, decode
from asynsched.timetables.partitions import checked_key, read_partitioning
from asynsched.timetables.zones import in_zone

OPERATION = "run_trigger"
BY_SOMEBODY = "somebody triggered it"
NO_ANSWERS = AnswersForRun()
RETRY_DELAY = timedelta(seconds=1)
RESERVED_PREFIXES = tuple(f"{run_type}__" for run_type in DagRunType if run_type not in RUN_TYPES_ON_REQUEST)
"""Prefixes of run ids that no manual run may have: it would block the run that the scheduler is to create."""
RUN_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.~:+-")


@dataclass(frozen=True, slots=True)
class ManualRuns:
    """Creates the runs that are requested from a serving scheduler.

    Attributes:
        ask: Asks the code of a DAG's author about a run: a custom timetable for its data interval and its name, custom
            mappers for the date of its partition. It takes the dag_id, the time that this code takes for the present,
            and the question. Raises DagError.
    """

    database: Database
    clock: Clock
    ask: Callable[[str, datetime, TimetableQuestion], Awaitable[AnswersForRun]]

    async def create(
        self, dag_id: str, wanted: Trigger, *, actor: str, author: str = "", reason: str = BY_SOMEBODY
    ) -> DagRunKey:
        """Create a run, and record the actor in the audit log. Raises as `create_manual_run` does.

        Args:
            author: Of the note, if there is one.
            reason: Why the run exists, for a person.
        """
        now = self.clock.now()
        answers = await self.ask(dag_id, wanted.date(now) or now, wanted.question(now))
        checked = await check_conf(self.database, dag_id, wanted.conf)
        return await self.database.write(
            _create_for, actor, dag_id, wanted, now=now, answers=answers, checked=checked, author=author, reason=reason
        )


def _create_for(
    conn: Connection, /, actor: str, dag_id: str, wanted: Trigger, *, now: datetime, **options: Any
) -> DagRunKey:
    key = create_manual_run(conn, dag_id, wanted, now=now, **options)
    record_audit(conn, at=now, actor=actor, action="dag.trigger", dag_id=dag_id, run_id=key.run_id)
    notify(conn, Hint("run", *key))  # another scheduler may have room for it
    return key


def create_manual_run(
    conn: Connection,
    dag_id: str,
    wanted: Trigger,
    *,
    now: datetime,
    answers: AnswersForRun = NO_ANSWERS,
    checked: "CheckedConf | None" = None,
    author: str = "",
    reason: str = BY_SOMEBODY,
) -> DagRunKey:
    """Store a queued run of a DAG, with its note.

    Args:
        answers: Of an author's own timetable or mappers, which must be asked beforehand: see `ManualRuns`.
        checked: The answer of `check_conf`; if the DAG has another version by now, the conf is checked here.
        author: Of the note.
        reason: Why the run exists, for a person.

    Raises:
        NotFound: There is no such DAG, or its file is gone.
        DagError: The DAG allows no runs of this type; a param has no value, or one that its schema forbids; the run_id
            has forbidden characters or is reserved; the DAG has no partitions, or none with this key.
        TimetableError: The logical date, or its data interval, is out of the calendar.
        PlanNeeded: The timetable is a custom one, and nobody has given the data interval.
        AlreadyExists: There is a run with this run_id or logical date.
    """
    dag = _checked_dag(conn, dag_id, wanted, checked)
    chosen = None if wanted.run_id is None else _checked_run_id(wanted.run_id)
    partition = wanted.partition_key
    base = DagRunRow(
        dag_id=dag_id, run_id="", run_type=wanted.run_type, state=DagRunState.QUEUED, reason=reason,
        run_after=now if wanted.run_after is None else in_zone(wanted.run_after, UTC), queued_at=now,
        conf=dict(wanted.conf), partition_key=partition,
        partition_date=None if partition is None else _partition_date(dag, partition, answers.partition_date),
    )  # fmt: skip
    usual = _checked_run_id(answers.run_id) if answers.run_id else _usual_run_id(wanted, base.run_after, now)
    interval = wanted.interval or answers.interval
    run = _dated(base, chosen or usual, wanted.date(now), interval, dag)
    # Check for taken names only after the insert failed: names are nearly always free, and each check is a round trip.
    if not insert_runs(conn, [run]):
        is_dated_now = wanted.has_logical_date and wanted.logical_date is None
        date = _free_date(conn, dag_id, now) if is_dated_now else wanted.date(now)
        run = _dated(base, chosen or free_run_id(conn, dag_id, usual)[0], date, interval, dag)
        _refuse_taken(conn, DagRunKey(dag_id, run.run_id), run.logical_date)
        insert_run(conn, run)
    if wanted.note and (stored := get_run(conn, dag_id, run.run_id)) is not None:
        put_note(conn, NoteRow(dag_run_id=stored.id, text=wanted.note, actor=author, updated_at=now))
    return DagRunKey(dag_id, run.run_id)


@dataclass(frozen=True, slots=True)
class CheckedConf:
    """The version of a DAG whose params a conf fits, decoded."""

    version_id: int
    dag: SerializedDag


async def check_conf(database: Database, dag_id: str, conf: Mapping[str, Any]) -> CheckedConf | None:
    """Decode a DAG and check a run's conf in a thread, so that neither the event loop nor a transaction waits for that.

    Returns None if there is no such DAG. Raises the errors of `validate_conf`.
    """
    version = await database.read_at_once(current_version, dag_id)
    return None if version is None else await to_thread.run_sync(_checked, version, conf)


def _checked(version: DagVersionRow, conf: Mapping[str, Any]) -> CheckedConf:
    dag = decode_dag(version.serialized)
    validate_conf(dag, conf)
    return CheckedConf(version.id, dag)


def _checked_dag(conn: Connection, dag_id: str, wanted: Trigger, checked: CheckedConf | None) -> SerializedDag:
    """Return a DAG that allows a run; see `create_manual_run`."""
    version = current_version(conn, dag_id)
    if version is None:
        raise NotFound("DAG", dag_id, near_dag_ids(conn, dag_id))
    if checked is None or checked.version_id != version.id:
        checked = _checked(version, wanted.conf)
    check_allowed(checked.dag, wanted.run_type)
    return checked.dag


def check_allowed(dag: SerializedDag, run_type: DagRunType) -> None:
    """Raise DagError if a DAG's `allowed_run_types` are without this type."""
    if dag.allowed_run_types and run_type not in dag.allowed_run_types:
        raise DagError(
            f"The DAG {dag.dag_id!r} allows no runs of the type {run_type}: its allowed_run_types are"
            f" {', '.join(dag.allowed_run_types)}."
        )


def validate_conf(dag: SerializedDag, conf: Mapping[str, Any]) -> None:
    """Check a run's conf, over the defaults of the DAG's params, against their schemas, within one limit of time.

    Raises:
        DagError: Names the DAG, the param and the fault; also if the conf is larger than `MAX_VALUE_BYTES`.
    """
    _check_conf(f"conf of a run of the DAG {dag.dag_id!r}", conf)
    if any(param.schema for param in dag.params.values()):
        from asynsched.authoring.json_schemas import limited_time  # loads jsonschema

        with limited_time():
            _validate_each(dag, conf)
    else:
        _validate_each(dag, conf)


def _check_conf(what: str, conf: Any) -> None:
    """Raise DagError unless a conf is a dict of JSON values within the limit of size."""
    if not isinstance(conf, Mapping):
        raise DagError(f"The {what} must be a dict, not {conf!r:.100}.")
    try:
        check_json(dict(conf), f"The {what}")
        sizes = {name: len(msgspec.json.encode({name: value})) for name, value in conf.items()}
    except TypeError as exc:
        raise DagError(f"{exc}.") from exc
    except UNENCODABLE as exc:
        raise DagError(f"The {what} cannot be stored: {exc}.") from exc
    if (size := sum(sizes.values())) > MAX_VALUE_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise DagError(
            f"The {what} is too large: {mebibytes(size)} of JSON; the limit is {mebibytes(MAX_VALUE_BYTES)}. The"
            f" largest value is {largest!r}, with {mebibytes(sizes[largest])}: pass on the path of a file or an object"
            " instead."
        )


def _validate_each(dag: SerializedDag, conf: Mapping[str, Any]) -> None:
    for name, param in dag.params.items():
        if name not in conf and not param.has_default:
            raise DagError(f"The DAG {dag.dag_id!r} needs a value for its param {name!r}: give it in the conf.")
        try:
            Param(schema=param.schema).resolve(conf.get(name, param.value))
        except ParamValidationError as exc:
            raise DagError(f"The DAG {dag.dag_id!r}, param {name!r}: {exc}") from exc


def _partition_date(dag: SerializedDag, key: str, answer: datetime | None) -> datetime | None:
    """Return the date of a partition of a DAG; None if its key has no such meaning. Raises DagError.

    `answer` is that of the author's own mappers, if there are any.
    """
    timetable = decode(dag.timetable)
    try:
        checked_key(key)
        if isinstance(timetable, CronPartitionTimetable):
            return timetable.date_of(key)
        if dag.partitions is not None:
            return read_partitioning(dag.partitions).date_of_key(dag.asset_condition, key)
    except KeysNeeded:
        return answer
    except (ValueError, OverflowError, DagError) as exc:
        raise DagError(f"The DAG {dag.dag_id!r} has no partition {key[:60]!r}: {exc}.") from exc
    if isinstance(timetable, PartitionedAtRuntime):
        return None
    raise DagError(f"The DAG {dag.dag_id!r} is not scheduled by partitions: leave the partition key out.")


def _checked_run_id(run_id: str) -> str:
    # Addresses with the parts `.` and `..` mean others.
    if len(run_id) > MAX_ID_LENGTH or run_id in ("", ".", "..") or not RUN_ID_CHARACTERS.issuperset(run_id):
        raise DagError(
            f"The run id {run_id[:60]!r} is not valid: use 1 to {MAX_ID_LENGTH} letters, digits and the characters"
            " _.~:+-"
        )
    if run_id == LATEST:
        raise DagError(f"The run id {LATEST!r} is reserved: commands name the newest run so. Choose another one.")
    if run_id.startswith(RESERVED_PREFIXES):
        raise DagError(
            f"The run id {run_id[:60]!r} is reserved for runs that the scheduler creates: choose one that does not"
            f" begin with {' or '.join(RESERVED_PREFIXES)}."
        )
    return run_id


def _usual_run_id(wanted: Trigger, run_after: datetime, now: datetime) -> str:
    """Return the run id, which may be taken, of a run that nobody has named."""
    # As in Airflow: a task's operator names a run by its logical date unless it gives the earliest start.
    is_by_date = wanted.run_after is None and wanted.run_type == DagRunType.OPERATOR_TRIGGERED
    prefix = wanted.run_type if wanted.run_type == DagRunType.ASSET_MATERIALIZATION else DagRunType.MANUAL
    return run_id_of(prefix, (wanted.date(now) or now) if is_by_date else run_after)


def _dated(
    run: DagRunRow, run_id: str, named: datetime | None, interval: DataInterval | None, dag: SerializedDag
) -> DagRunRow:
    date = named and in_zone(named, UTC)
    if interval is None and date is not None:
        interval = decode(dag.timetable).infer_manual_data_interval(run_after=date)
    return replace(
        run,
        run_id=run_id,
        logical_date=date,
        data_interval_start=interval and in_zone(interval.start, UTC),
        data_interval_end=interval and in_zone(interval.end, UTC),
    )


def _refuse_taken(conn: Connection, key: DagRunKey, date: datetime | None) -> None:
    if get_run(conn, *key) is not None:
        raise AlreadyExists(f"The DAG {key.dag_id!r} has a run {key.run_id!r} already; choose another run id.")
    if date is not None and run_of_date(conn, key.dag_id, date) is not None:
        raise AlreadyExists(f"The DAG {key.dag_id!r} has a run of the logical date {date.isoformat()} already.")


def _free_date(conn: Connection, dag_id: str, now: datetime) -> datetime:
    """Return the first instant from now on that is not yet a logical date: two triggers may come at one instant."""
    while run_of_date(conn, dag_id, now) is not None:
        now += timedelta(microseconds=1)
    return now


class RequestedRun(msgspec.Struct, frozen=True):
    """A task's request for a run."""

    dag_id: str
    run_id: str | None = None
    conf: dict[str, Any] = {}
    logical_date: datetime | None = None
    has_logical_date: bool = True
    run_after: datetime | None = None
    reset: bool = False
    fail_when_paused: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunsByTasks:
    """Creates runs for tasks, and tells the evaluator. While the database is unavailable, the task waits."""

    database: Database
    channels: Channels
    clock: Clock
    runs: ManualRuns

    async def answer(self, request: Request, ready: TaskReady) -> Reply:
        """Return the result: its `status` is `created`, `exists` or `paused`."""
        while True:
            try:
                wanted = msgspec.convert(request.arguments, RequestedRun)
                value = await self._trigger(wanted, ready.launch)
            except StoreUnavailable:
                await self.clock.sleep(RETRY_DELAY)
            except NotFound:
                return Reply(request.token, request.request_id, found=False)
            except (StoreError, DagError, msgspec.ValidationError) as exc:
                return Reply(request.token, request.request_id, error=str(exc))
            else:
                return Reply(request.token, request.request_id, value=value)

    async def _trigger(self, wanted: RequestedRun, launch: Launch) -> dict[str, Any]:
        own = launch.run
        actor = f"task {own.dag_id} {own.run_id} {launch.task_id} {launch.token}"
        known = await self.database.read(_known, wanted, actor, own.started_at or own.run_after)
        if known is not None:
            return known
        run = Trigger(
            run_id=wanted.run_id, logical_date=wanted.logical_date, has_logical_date=wanted.has_logical_date,
            conf=wanted.conf, note=wanted.note, run_type=DagRunType.OPERATOR_TRIGGERED, run_after=wanted.run_after,
        )  # fmt: skip
        author = f"{launch.task_id} of {own.dag_id}"
        reason = f"the task {launch.task_id} of the DAG {own.dag_id} triggered it, in its run {own.run_id}"
        try:
            key = await self.runs.create(wanted.dag_id, run, actor=actor, author=author, reason=reason)
        except AlreadyExists as exc:
            if not wanted.reset:
                return {"status": "exists", "reason": str(exc)}
            key = await self.database.write(_clear, wanted, actor, self.clock.now())
            await self.channels.runs.put(RunEdited(key))
        else:
            await self.channels.runs.put(RunCreated(key))
        return {"status": "created", "run_id": key.run_id}


def _known(conn: Connection, wanted: RequestedRun, actor: str, since: datetime) -> dict[str, Any] | None:
    """Return the result if no run must be created: the DAG is paused, or an earlier scheduler has created the run."""
    dag = get_dag(conn, wanted.dag_id)
    if wanted.fail_when_paused and dag is not None and dag.is_paused:
        return {"status": "paused"}
    for earlier in acts_since(conn, wanted.dag_id, since):
        if earlier.actor == actor and earlier.action in ("dag.trigger", "run.clear"):
            return {"status": "created", "run_id": earlier.run_id}
    return None


def _clear(conn: Connection, wanted: RequestedRun, actor: str, now: datetime) -> DagRunKey:
    """Clear the existing run, so that it runs again, and return its key."""
    run = get_run(conn, wanted.dag_id, wanted.run_id) if wanted.run_id else None
    if run is None and wanted.logical_date is not None:
        run = run_of_date(conn, wanted.dag_id, wanted.logical_date)
    if run is None:
        raise NotFound("DAG run", wanted.run_id or wanted.dag_id)
    key = DagRunKey(run.dag_id, run.run_id)
    # A run without task instances has not begun, so there is nothing to clear.
    if load_task_instances(conn, run.id):
        submit_request(conn, key, ClearTasks(), actor=actor, now=now)
    record_audit(conn, at=now, actor=actor, action="run.clear", dag_id=run.dag_id, run_id=run.run_id)
    return key


def update_asset(
    conn: Connection,
    asset: str | Asset,
    extra: Mapping[str, Any] | None,
    *,
    now: datetime,
    partition_key: str | None = None,
) -> tuple[str, list[str]]:
    """Store an event of an asset for the DAGs that are scheduled by it.

    Args:
        asset: The asset; or the name or URI of a known one.
        extra: JSON values that describe the update.
        partition_key: The partition that was updated: only DAGs that are scheduled by partitions get such an event.

    Returns:
        The asset's name, and the dag_ids.

    Raises:
        NotFound: There is no asset of that name or URI.
        DagError: The extra is not JSON, or the partition key is blank or too long.
    """
    try:
        key = None if partition_key is None else checked_key(partition_key)
    except ValueError as exc:
        raise DagError(str(exc)) from exc
    if isinstance(asset, str):
        known = get_asset(conn, asset)
        asset = Asset(known.name, known.uri, group=known.group_name, extra=known.extra)
    told = checked_extra(f"event of the asset {asset.name!r}", None if extra is None else dict(extra))
    event = AssetEventRow(
        asset.name, asset.uri, told, now, group=asset.group, asset_extra=asset.extra, partition_key=key
    )
    return asset.name, record_events(conn, [event])


def update_by_program(conn: Connection, /, asset: str | Asset, *, now: datetime, **options: Any) -> None:
    """Call `update_asset` for the program that embeds the scheduler, and record it in the audit log."""
    name, _ = update_asset(conn, asset, now=now, **options)
    record_audit(conn, at=now, actor="program", action="asset.event", detail={"asset": name})
