"""Answers the requests of tasks from memory, for a run without a scheduler."""

import datetime as dt
import json
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Any

from asynsched.authoring.supervisor import Supervisor, SupervisorError, SupervisorNotFound
from asynsched.authoring.xcom import read_xcom
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY
from asynsched.protocol.messages import TaskInstanceFacts
from asynsched.scheduling.evaluation.run import ActiveRun, ActiveTask
from sandbox.run import encode_request

UNMAPPED = -1
"""The map_index of a task that is not mapped."""


class MemorySupervisor:
    """Keeps the XComs of one run, and the given variables and connections. Values pass through JSON, as elsewhere.

    Args:
        variables: Variables by name; tasks set and delete variables only here.
        connections: Fields of connections by name.
        outer: Knows other variables and connections, and settings.

    Attributes:
        running_task: The task that runs, and pushes XComs.
        running_index: Its map index.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        connections: Mapping[str, Mapping[str, Any]],
        outer: Supervisor | None = None,
    ) -> None:
        self.run: tuple[str, str] | None = None
        """The dag_id and the run_id."""
        self.active: ActiveRun | None = None
        """The run with its task instances; questions about others are refused."""
        self.running_task = ""
        self.running_index = UNMAPPED
        self._variables: dict[str, str | None] = dict(variables)
        """None: the run has deleted it."""
        self._outer = outer
        self._connections = connections
        self._xcoms: defaultdict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
        self._task_states: defaultdict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
        self._asset_states: list[tuple[str, str, dict[str, Any]]] = []
        """The name and URI of each asset with its values."""

    def request(self, operation: str, **arguments: Any) -> Any:
        """Return the answer to one request; `asynsched.authoring.supervisor` lists them."""
        answer = getattr(self, f"_answer_{operation}", None)
        if answer is None:
            raise SupervisorError(f"{operation} cannot be answered in a run without a scheduler")
        encode_request("", self.running_task, 0, operation, arguments)  # raises what it would raise in a try
        return answer(**arguments)

    @cached_property
    def max_map_length(self) -> int:
        """The most values that a task may return if others are mapped over them."""
        if self._outer is None:
            return TaskInstanceFacts().max_map_length
        length: int = self._outer.request("max_map_length")
        return length

    def keep_result(self, task_id: str, value: Any, map_index: int = UNMAPPED) -> Any:
        """Store the result of a task, and return it as other tasks will see it."""
        return read_xcom(self._push(task_id, map_index, XCOM_RETURN_KEY, value), XCOM_RETURN_KEY)

    def _push(self, task_id: str, map_index: int, key: str, value: Any) -> Any:
        kept = _through_json(value)
        self._xcoms[task_id, key][map_index] = kept
        return kept

    def _mapped(self, task_id: str, key: str, map_indexes: Collection[int] | None) -> list[Any]:
        """Return the values of the instances of a mapped task, by map index: from the first to before the second."""
        first, end = map_indexes or (0, sys.maxsize)
        found = sorted(self._xcoms[task_id, key].items(), key=itemgetter(0))
        return [value for index, value in found if first <= index < end]

    def _answer_xcom_pull(
        self,
        *,
        task_ids: list[str],
        key: str,
        map_indexes: list[int] | None,
        dag_id: str | None = None,
        run_id: str | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        if self.run is not None and ((dag_id or self.run[0]), (run_id or self.run[1])) != self.run:
            return _whole([])  # of another run, which only a scheduler knows
        return _whole(
            [
                [task_id, map_index, value]
                for task_id in task_ids
                for map_index, value in sorted(self._xcoms[task_id, key].items(), key=itemgetter(0))
                if map_indexes is None or map_index in map_indexes
            ]
        )

    def _answer_xcom_push(self, *, key: str, value: Any) -> None:
        self._push(self.running_task, self.running_index, key, value)

    def _answer_xcom_delete(self, *, key: str) -> None:
        self._xcoms[self.running_task, key].pop(self.running_index, None)

    def _answer_xcom_count(self, *, task_id: str, key: str, map_indexes: list[int] | None) -> int:
        return len(self._mapped(task_id, key, map_indexes))

    def _answer_xcom_values(
        self, *, task_id: str, key: str, map_indexes: list[int] | None, offset: int, limit: int | None
    ) -> list[Any]:
        return self._mapped(task_id, key, map_indexes)[offset:][:limit]

    def _answer_variable_get(self, *, key: str) -> str:
        if key not in self._variables and self._outer is not None:
            found: str = self._outer.request("variable_get", key=key)
            return found
        value = self._variables.get(key)
        if value is None:
            raise SupervisorNotFound(f"there is no variable {key!r}")
        return value

    def _answer_variable_keys(self, *, prefix: str) -> list[str]:
        own = {key: value for key, value in self._variables.items() if key.startswith(prefix)}
        stored = [] if self._outer is None else self._outer.request("variable_keys", prefix=prefix)
        return sorted({*stored, *own} - {key for key, value in own.items() if value is None})

    def _answer_variable_set(self, *, key: str, value: str, description: str | None = None) -> None:
        self._variables[key] = value

    def _answer_variable_delete(self, *, key: str) -> None:
        self._variables[key] = None

    def _answer_mask_secret(self, *, secrets: list[str]) -> None:
        """Do nothing: the output goes to the terminal as it is."""

    def _answer_connection_get(self, *, conn_id: str) -> Mapping[str, Any]:
        if conn_id not in self._connections and self._outer is not None:
            found: Mapping[str, Any] = self._outer.request("connection_get", conn_id=conn_id)
            return found
        if conn_id not in self._connections:
            raise SupervisorNotFound(f"there is no connection {conn_id!r}")
        return self._connections[conn_id]

    def _answer_previous_task_instance(self, *, task_id: str, **_: Any) -> None:
        raise SupervisorNotFound(f"there is no earlier run of {task_id!r}")

    def _answer_triggering_asset_events(self, **_: Any) -> dict[str, Any]:
        return _whole([])

    def _answer_task_state_get(self, *, key: str) -> Any:
        return _value(self._own_states, key)

    def _answer_task_state_set(self, *, key: str, value: Any, seconds: float | None) -> None:
        # A run in the foreground is too short for others to expire.
        if seconds is None or seconds > 0:
            self._own_states[key] = _through_json(value)

    def _answer_task_state_delete(self, *, key: str) -> None:
        self._own_states.pop(key, None)

    def _answer_task_state_clear(self) -> None:
        self._own_states.clear()

    @property
    def _own_states(self) -> dict[str, Any]:
        return self._task_states[self.running_task, self.running_index]

    def _answer_asset_state_get(self, *, name: str, uri: str, key: str) -> Any:
        return _value(self._states_of(name, uri), key)

    def _answer_asset_state_set(self, *, name: str, uri: str, key: str, value: Any) -> None:
        self._states_of(name, uri)[key] = _through_json(value)

    def _answer_asset_state_delete(self, *, name: str, uri: str, key: str) -> None:
        self._states_of(name, uri).pop(key, None)

    def _answer_asset_state_clear(self, *, name: str, uri: str) -> None:
        self._states_of(name, uri).clear()

    def _states_of(self, name: str, uri: str) -> dict[str, Any]:
        for known_name, known_uri, states in self._asset_states:
            if (name and name == known_name) or (uri and uri == known_uri):
                return states
        self._asset_states.append((name, uri, {}))
        return self._asset_states[-1][2]

    def _answer_hitl_ask(self, *, question: dict[str, Any]) -> None:
        """Do nothing: no person can answer, so the defaults apply."""

    def _answer_assets_of_alias(self, *, name: str) -> list[dict[str, Any]]:
        return []

    _answer_asset_events = _answer_triggering_asset_events

    def _answer_asset_get(self, *, name: str) -> dict[str, Any]:
        return {"name": name, "uri": name, "group_name": "asset", "extra": {}}

    def _answer_run_state(self, *, dag_id: str, run_id: str) -> str:
        return str(self._own_run("run_state", dag_id, [run_id]).state)

    def _answer_task_count(self, *, states: list[str] | None, **wanted: Any) -> int:
        return sum(1 for task in self._own_instances("task_count", **wanted) if not states or str(task.state) in states)

    def _answer_task_states(self, *, states: None, place: None, **wanted: Any) -> dict[str, Any]:
        found = {
            f"{task.task_id}_{task.map_index}" if task.map_index >= 0 else task.task_id: task.state and str(task.state)
            for task in self._own_instances("task_states", **wanted)
        }
        return {"found": {self._own_run_id: found} if found else {}, "place": None}

    @property
    def _own_run_id(self) -> str:
        return self.run[1] if self.run is not None else ""

    def _own_run(
        self, operation: str, dag_id: str, run_ids: list[str] | None, logical_dates: list[str] | None = None
    ) -> ActiveRun:
        """Return the run that is asked about. Raises SupervisorError if another one is asked about."""
        run = self.active
        if run is not None and dag_id == run.key.dag_id and set(run_ids or ()) <= {run.key.run_id}:
            dates = {dt.datetime.fromisoformat(date) for date in logical_dates or ()}
            if dates <= {run.logical_date}:
                return run
        raise SupervisorError(f"{operation} of other runs cannot be answered in a run without a scheduler")

    def _own_instances(
        self,
        operation: str,
        *,
        dag_id: str,
        map_index: int | None,
        task_ids: list[str] | None,
        task_group_id: str | None,
        logical_dates: list[str] | None,
        run_ids: list[str] | None,
    ) -> Iterator[ActiveTask]:
        run = self._own_run(operation, dag_id, run_ids, logical_dates)
        in_group = None if task_group_id is None else _tasks_within(run, task_group_id)
        for task in run.all_instances():
            is_wanted = not task_ids or task.task_id in task_ids
            is_there = in_group is None or task.task_id in in_group
            if is_wanted and is_there and map_index in (None, task.map_index):
                yield task

    def _answer_previous_run(self, *, state: str | None) -> None:
        raise SupervisorNotFound(f"there is no earlier run in state {state or 'any'}")


def _tasks_within(run: ActiveRun, group_id: str) -> set[str]:
    """Return the task_ids of a group, and of the groups in it. Raises SupervisorNotFound without such a group."""
    dag = run.structure.dag
    parents = {group.group_id: group.parent_id for group in dag.task_groups}
    if group_id not in parents:
        raise SupervisorNotFound(f"there is no task group {group_id!r} in the DAG {run.key.dag_id!r}")
    within = {group_id}
    while inner := {name for name, parent in parents.items() if parent in within} - within:
        within |= inner
    return {task.task_id for task in dag.tasks if task.group_id in within}


def _whole(found: list[Any]) -> dict[str, Any]:
    """Return an answer that has one part."""
    return {"found": found, "place": None}


def _value(states: dict[str, Any], key: str) -> Any:
    if key not in states:
        raise SupervisorNotFound(f"there is no state {key!r}")
    return _through_json(states[key])


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))
