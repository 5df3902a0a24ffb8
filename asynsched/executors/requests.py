"""Answers the requests of tries: XComs of their own runs, variables, connections, assets, states of runs and tasks."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from sqlalchemy import Connection

from asynsched.bell import Hint
from asynsched.channels import NameChanged, TaskReady
from asynsched.clock import Clock
from asynsched.errors import NotFound, StoreError
from asynsched.executors.tokens import is_callback_token
from asynsched.protocol.messages import Reply, Request
from asynsched.serialization.schema import SerializedDag
from asynsched.service import until_available
from asynsched.store.assets import EventFilter, EventsLeft, assets_of_alias, find_asset, some_events
from asynsched.store.dags.dags import get_dag, get_source, latest_version
from asynsched.store.database import Database
from asynsched.store.runs.dag_runs import get_run, previous_run
from asynsched.store.runs.hitl import Question, fields_of_question, get_question, put_answer, put_question
from asynsched.store.runs.requests import add_request
from asynsched.store.runs.states_elsewhere import (
    InstancePosition,
    RunFilter,
    TaskFilter,
    count_runs,
    count_task_instances,
    previous_task_instance,
    states_by_run,
)
from asynsched.store.runs.xcoms import (
    MappedXComs,
    count_mapped_xcoms,
    delete_xcom,
    mapped_xcoms,
    newest_run_with_xcom,
    put_xcom,
    put_xcom_of_try,
    some_xcoms,
)
from asynsched.store.schedulers import notify
from asynsched.store.schema import AssetStateRow, DagRunRow, TaskStateRow, XComRow
from asynsched.store.secrets import delete_variable, get_connection, get_variable, set_variable, variable_keys
from asynsched.store.state_stores import (
    Scope,
    check_try,
    delete_asset_state,
    delete_task_state,
    expiry,
    get_asset_state,
    get_task_state,
    put_asset_state,
    put_task_state,
)

_CHANGE_VARIABLES = frozenset({"variable_set", "variable_delete"})
WRITES = _CHANGE_VARIABLES | frozenset({
    "asset_state_clear", "asset_state_delete", "asset_state_set", "hitl_answer", "hitl_ask", "task_state_clear",
    "task_state_delete", "task_state_set", "xcom_delete", "xcom_push",
})  # fmt: skip
MAX_MAP_INDEX = 2**31 - 1
MOST_NAMES = 10_000
"""Most names in one request; each is a parameter of a statement."""
_OF_DAG = ("dag_id", "file_path", "is_active", "is_paused", "has_errors")
NAMES = ("task_ids", "map_indexes", "run_ids", "logical_dates", "states")

T = TypeVar("T")
Answer = Callable[[Request, TaskReady], Awaitable[Reply]]


class _PlaceOfXCom(NamedTuple):
    run: int
    task_id: str
    map_index: int


class _EventsWanted(Struct):
    name: str = ""
    uri: str = ""
    alias: str = ""
    after: datetime | None = None
    before: datetime | None = None
    ascending: bool = True
    limit: int | None = None
    place: EventsLeft | None = None


class _StatesWanted(TaskFilter, frozen=True):
    place: InstancePosition | None = None


class RequestAnswerer:
    """Answers requests of tries from the database. While the database is away, a try waits.

    Args:
        others: Answer the operations that need more than the database, by name.
        name_changed: Told of each variable that a task has set or deleted.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        others: Mapping[str, Answer] = MappingProxyType({}),
        name_changed: Callable[[NameChanged], Awaitable[None]] | None = None,
    ) -> None:
        self._database = database
        self._name_changed = name_changed
        self._clock = clock
        self._others = others

    async def answer(self, request: Request, ready: TaskReady) -> Reply:
        """Return the value, a missing value, or an error in one line."""
        if request.operation in self._others:
            return await self._others[request.operation](request, ready)
        operation = _OPERATIONS.get(request.operation)
        if operation is None:
            return Reply(request.token, request.request_id, error=f"there is no operation {request.operation!r}")
        given = {name: len(names) for name in NAMES if isinstance(names := request.arguments.get(name), list)}
        if sum(given.values()) > MOST_NAMES:
            named = ", ".join(f"{n} {name}" for name, n in given.items() if n)
            error = f"{request.operation}: {named}; one request may name at most {MOST_NAMES}"
            return Reply(request.token, request.request_id, error=error)
        run = self._database.write if request.operation in WRITES else self._database.read
        try:
            value = await until_available(self._clock, run, operation, ready, request.arguments, self._clock)
            if request.operation in _CHANGE_VARIABLES and self._name_changed is not None:
                await self._name_changed(NameChanged("variable", request.arguments["key"]))
            return Reply(request.token, request.request_id, value=value)
        except NotFound as exc:
            return Reply(request.token, request.request_id, found=False, error=str(exc))
        except (StoreError, KeyError, TypeError, ValueError, msgspec.ValidationError) as exc:
            return Reply(request.token, request.request_id, error=f"{request.operation}: {exc}")


def _xcom_pull(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> Any:
    """Return some [task_id, map_index, value], ordered by task and index. Raises NotFound if none matches."""
    place = msgspec.convert(arguments.get("place"), _PlaceOfXCom | None)
    run = _run_pulled_from(conn, ready, arguments) if place is None else place.run
    found, is_last = some_xcoms(
        conn,
        run,
        key=arguments["key"],
        task_ids=arguments["task_ids"],
        map_indexes=arguments.get("map_indexes"),
        after=None if place is None else place[1:],
    )
    if not found and place is None:
        raise NotFound("XCom", arguments["key"])
    # As they are stored: the task decodes them, not the event loop.
    values = [(item.task_id, item.map_index, msgspec.Raw(item.value)) for item in found]
    return _part(values, None if is_last else _PlaceOfXCom(run, *found[-1][:2]))


def _found(found: T | None, kind: str, name: str) -> T:
    if found is None:
        raise NotFound(kind, name)
    return found


def _part(found: Any, place: tuple[Any, ...] | None) -> dict[str, Any]:
    """Return a part of an answer: its items, and where the next part begins."""
    return {"found": found, "place": place}


def _run_pulled_from(conn: Connection, ready: TaskReady, arguments: dict[str, Any]) -> int:
    """Return the row id of the run whose values are wanted: the try's own, unless it names another, or earlier ones."""
    own = ready.launch.run
    dag_id, run_id = arguments.get("dag_id") or own.dag_id, arguments.get("run_id") or own.run_id
    is_own = (dag_id, run_id) == (own.dag_id, own.run_id)
    if not arguments.get("include_prior_dates"):
        return ready.dag_run_id if is_own else _found(get_run(conn, dag_id, run_id), "DAG run", run_id).id
    named = own if run_id == own.run_id else _found(get_run(conn, dag_id, run_id), "DAG run", run_id)
    task_ids, until = arguments["task_ids"], named.logical_date or named.run_after
    newest = newest_run_with_xcom(conn, dag_id, key=arguments["key"], task_ids=task_ids, until=until)
    return _found(newest, "XCom", arguments["key"])


def _xcom_push(conn: Connection, ready: TaskReady, arguments: dict[str, Any], clock: Clock) -> None:
    launch = ready.launch
    value = msgspec.json.encode(arguments["value"])
    pushed = XComRow(ready.dag_run_id, launch.task_id, launch.map_index, arguments["key"], value, clock.now())
    if is_callback_token(launch.token):
        put_xcom(conn, pushed)
    else:
        # A try that is being ended runs for a while longer: its values must not count as the next try's.
        put_xcom_of_try(conn, pushed, launch.token)


def _variable_set(conn: Connection, _: TaskReady, given: dict[str, Any], __: Clock) -> None:
    set_variable(conn, given["key"], given["value"], given.get("description") or "")
    _notify_of_variable(conn, given["key"])


def _variable_delete(conn: Connection, _: TaskReady, given: dict[str, Any], __: Clock) -> None:
    delete_variable(conn, given["key"])
    _notify_of_variable(conn, given["key"])


def _notify_of_variable(conn: Connection, key: str) -> None:
    """Tell the other schedulers, which may have parsed files that read the variable."""
    notify(conn, Hint("variable", name=key))


def _xcom_delete(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> None:
    _check_try(conn, ready)
    launch = ready.launch
    delete_xcom(conn, ready.dag_run_id, launch.task_id, launch.map_index, arguments["key"])


def _scope(ready: TaskReady) -> Scope:
    return ready.dag_run_id, ready.launch.task_id, ready.launch.map_index


def _check_try(conn: Connection, ready: TaskReady) -> None:
    # Callbacks have no try; a try that is being ended runs for a while longer.
    if not is_callback_token(ready.launch.token):
        check_try(conn, _scope(ready), ready.launch.token)


def _task_state_get(conn: Connection, ready: TaskReady, arguments: dict[str, Any], clock: Clock) -> msgspec.Raw:
    found = get_task_state(conn, _scope(ready), arguments["key"], now=clock.now())
    return msgspec.Raw(_found(found, "state", arguments["key"]))


def _task_state_set(conn: Connection, ready: TaskReady, arguments: dict[str, Any], clock: Clock) -> None:
    _check_try(conn, ready)
    seconds, value = arguments.get("seconds"), msgspec.json.encode(arguments["value"])
    expires_at = None if seconds is None else expiry(clock.now(), seconds)
    put_task_state(conn, TaskStateRow(*_scope(ready), arguments["key"], value, clock.now(), expires_at))


def _task_state_delete(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> None:
    _check_try(conn, ready)
    delete_task_state(conn, _scope(ready), arguments["key"])


def _task_state_clear(conn: Connection, ready: TaskReady, _: dict[str, Any], __: Clock) -> None:
    _check_try(conn, ready)
    delete_task_state(conn, _scope(ready))


def _asset_id(conn: Connection, arguments: dict[str, Any]) -> int:
    name, uri = arguments["name"], arguments["uri"]
    return _found(find_asset(conn, name=name, uri=uri), "asset", name or uri).id


def _asset_state_get(conn: Connection, _: TaskReady, arguments: dict[str, Any], __: Clock) -> msgspec.Raw:
    found = get_asset_state(conn, _asset_id(conn, arguments), arguments["key"])
    return msgspec.Raw(_found(found, "state", arguments["key"]))


def _asset_state_set(conn: Connection, ready: TaskReady, arguments: dict[str, Any], clock: Clock) -> None:
    launch = ready.launch
    put_asset_state(conn, AssetStateRow(
        asset_id=_asset_id(conn, arguments), key=arguments["key"], value=msgspec.json.encode(arguments["value"]),
        updated_at=clock.now(), dag_id=launch.run.dag_id or None, run_id=launch.run.run_id or None,
        task_id=launch.task_id or None, map_index=launch.map_index,
    ))  # fmt: skip


def _hitl_ask(conn: Connection, ready: TaskReady, arguments: dict[str, Any], clock: Clock) -> None:
    _check_try(conn, ready)
    asked = msgspec.convert(arguments["question"], Question)
    put_question(conn, _scope(ready), ready.launch.token, asked, clock.now())


def _hitl_get(conn: Connection, ready: TaskReady, _: dict[str, Any], __: Clock) -> dict[str, Any]:
    return fields_of_question(_found(get_question(conn, _scope(ready)), "question", ready.launch.task_id))


def _hitl_answer(conn: Connection, ready: TaskReady, arguments: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Answer in no person's name. As after a person's answer, the task resumes once it waits."""
    _check_try(conn, ready)
    asked = _found(get_question(conn, _scope(ready), lock=True), "question", ready.launch.task_id)
    if asked.responded_at is not None:
        raise StoreError("it has an answer already")
    answer = {"chosen_options": arguments["chosen_options"], "params_input": arguments["params_input"]}
    request = put_answer(conn, asked, **answer, user=None, now=clock.now())
    add_request(conn, ready.dag_run_id, request, actor="the task", now=clock.now())
    return _hitl_get(conn, ready, {}, clock)


def _xcom_values(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> list[msgspec.Raw]:
    found = mapped_xcoms(conn, _mapped(ready, arguments), arguments["offset"], arguments["limit"])
    return [msgspec.Raw(value) for value in found]


def _mapped(ready: TaskReady, arguments: dict[str, Any]) -> MappedXComs:
    first, end = arguments["map_indexes"] or (0, MAX_MAP_INDEX)
    return MappedXComs(ready.dag_run_id, arguments["task_id"], arguments["key"], first, end)


def _task_states(conn: Connection, _: TaskReady, arguments: dict[str, Any], __: Clock) -> dict[str, Any]:
    wanted = msgspec.convert(arguments, _StatesWanted)
    return _part(*states_by_run(conn, wanted, wanted.place))


def _run(conn: Connection, arguments: dict[str, Any]) -> DagRunRow:
    return _found(get_run(conn, arguments["dag_id"], arguments["run_id"]), "DAG run", arguments["run_id"])


def _dag_get(conn: Connection, _: TaskReady, arguments: dict[str, Any], __: Clock) -> dict[str, Any]:
    found = _found(get_dag(conn, arguments["dag_id"]), "DAG", arguments["dag_id"])
    return {name: getattr(found, name) for name in _OF_DAG}


def _dag_names(conn: Connection, _: TaskReady, arguments: dict[str, Any], __: Clock) -> dict[str, list[str]]:
    """Return the task_ids and group_ids of a DAG's newest version."""
    version = _found(latest_version(conn, arguments["dag_id"]), "DAG", arguments["dag_id"])
    dag = msgspec.json.decode(version.serialized, type=SerializedDag)
    return {
        "task_ids": [task.task_id for task in dag.tasks],
        "group_ids": [group.group_id for group in dag.task_groups],
    }


def _previous_task_instance(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> Any:
    found = previous_task_instance(
        conn,
        ready.launch.run.dag_id,
        arguments["task_id"],
        before=msgspec.convert(arguments["before"], datetime),
        map_index=arguments.get("map_index", -1),
        state=arguments.get("state"),
    )
    return msgspec.to_builtins(_found(found, "earlier task instance", arguments["task_id"]))


def _previous_run(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> Any:
    launch = ready.launch
    found = previous_run(conn, launch.run.dag_id, before=launch.run.logical_date, state=arguments.get("state"))
    return msgspec.to_builtins(_found(found, "earlier DAG run", launch.run.dag_id))


def _triggering_asset_events(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> Any:
    place = msgspec.convert(arguments.get("place"), EventsLeft | None)
    return _part(*some_events(conn, EventFilter(run=ready.dag_run_id), left=place))


def _asset_events(conn: Connection, _: TaskReady, arguments: dict[str, Any], __: Clock) -> Any:
    wanted = msgspec.convert(arguments, _EventsWanted)
    matching = EventFilter(wanted.name, wanted.uri, wanted.alias, wanted.after, wanted.before)
    return _part(*some_events(conn, matching, ascending=wanted.ascending, limit=wanted.limit, left=wanted.place))


def _source_get(conn: Connection, ready: TaskReady, arguments: dict[str, Any], _: Clock) -> str:
    """Return the text of a source of the code that the try runs."""
    wanted = arguments["content_hash"]
    if all(ref.content_hash != wanted for ref in ready.launch.code.sources):
        raise NotFound("source", wanted)
    return get_source(conn, wanted)


_OPERATIONS: dict[str, Callable[[Connection, TaskReady, dict[str, Any], Clock], Any]] = {
    "xcom_pull": _xcom_pull,
    "xcom_push": _xcom_push,
    "xcom_delete": _xcom_delete,
    "xcom_count": lambda conn, ready, given, _: count_mapped_xcoms(conn, _mapped(ready, given)),
    "xcom_values": _xcom_values,
    "variable_get": lambda conn, _, given, __: get_variable(conn, given["key"]).value,
    "variable_keys": lambda conn, _, given, __: variable_keys(conn, given["prefix"]),
    "variable_set": _variable_set,
    "variable_delete": _variable_delete,
    "connection_get": lambda conn, _, given, __: msgspec.structs.asdict(get_connection(conn, given["conn_id"])),
    "task_states": _task_states,
    "task_count": lambda conn, _, given, __: count_task_instances(conn, msgspec.convert(given, TaskFilter)),
    "run_count": lambda conn, _, given, __: count_runs(conn, msgspec.convert(given, RunFilter)),
    "run_state": lambda conn, _, given, __: _run(conn, given).state,
    "dag_get": _dag_get,
    "dag_names": _dag_names,
    "previous_task_instance": _previous_task_instance,
    "previous_run": _previous_run,
    "dag_run": lambda conn, _, given, __: msgspec.to_builtins(_run(conn, given)),
    "triggering_asset_events": _triggering_asset_events,
    "asset_events": _asset_events,
    "asset_get": lambda conn, _, given, __: msgspec.to_builtins(
        _found(find_asset(conn, name=given["name"]), "asset", given["name"])
    ),
    "source_get": _source_get,
    "task_state_get": _task_state_get,
    "task_state_set": _task_state_set,
    "task_state_delete": _task_state_delete,
    "task_state_clear": _task_state_clear,
    "asset_state_get": _asset_state_get,
    "asset_state_set": _asset_state_set,
    "asset_state_delete": lambda conn, _, given, __: delete_asset_state(conn, _asset_id(conn, given), given["key"]),
    "asset_state_clear": lambda conn, _, given, __: delete_asset_state(conn, _asset_id(conn, given)),
    "hitl_ask": _hitl_ask,
    "hitl_get": _hitl_get,
    "hitl_answer": _hitl_answer,
    "assets_of_alias": lambda conn, _, given, __: [
        {"name": found.name, "uri": found.uri} for found in assets_of_alias(conn, given["name"])
    ],
}
