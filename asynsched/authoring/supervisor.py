"""How a task requests data from outside of its process: XComs, variables, connections.

The code that runs a task sets the supervisor: in the process of a try it talks to the scheduler, in `DAG.test` it keeps
everything in memory. While a DAG file is parsed, it answers `variable_get` and `connection_get` only. A program that
imports a DAG file has no supervisor.

These are the operations, their arguments and their answers (see `asynsched.protocol.messages.Request`; XCom values are
as `asynsched.authoring.transport` writes them). Answers that may be large come in parts, through `ask_in_parts`: each
part is a dict of `found` and of the `place` where the next part begins, None in the last part.

- `xcom_pull` (task_ids: list, key, map_indexes, run_id, dag_id, include_prior_dates): in parts, lists of
  [task_id, map_index, value], by task and index. None for run_id and dag_id means the task's own. None found:
  SupervisorNotFound.
- `xcom_push` (key, value): nothing. The requesting task pushes the value.
- `xcom_delete` (key): nothing. The XCom of the requesting task is deleted, if there is one.
- `xcom_count` (task_id, key, map_indexes): how many instances of a mapped task pushed this key. `map_indexes` is the
  first and one past the last; None for all.
- `xcom_values` (task_id, key, map_indexes, offset, limit): a list of these values by map index, from `offset` on: at
  most `limit`, and no more than one answer should hold. None for `limit` means as many as it holds.
- `variable_get` (key): the value. Not found: SupervisorNotFound.
- `variable_keys` (prefix): a sorted list of the keys of the stored variables that begin so.
- `variable_set` (key, value, description), `variable_delete` (key): nothing.
- `connection_get` (conn_id): a dict of the fields of `Connection`. Not found: SupervisorNotFound.
- `mask_secret` (secrets): nothing. The log of the task shows these texts no more.
- `task_states` (dag_id, map_index, task_ids, task_group_id, logical_dates, run_ids): in parts, dicts of states by
  run_id and task_id.
- `task_count` (the same, and states), `run_count` (dag_id, logical_dates, run_ids, states): a number.
- `dag_run` (dag_id, run_id): a dict of the fields of a DagRun. Not found: SupervisorNotFound.
- `run_state` (dag_id, run_id): the state of a run. Not found: SupervisorNotFound.
- `dag_get` (dag_id): a dict of `dag_id`, `file_path`, `is_active`, `is_paused` and `has_errors` of a DAG. Not found:
  SupervisorNotFound.
- `dag_names` (dag_id): a dict of the `task_ids` and `group_ids` of a DAG. Not found: SupervisorNotFound.
- `run_trigger` (dag_id, run_id, conf, logical_date, has_logical_date, reset, fail_when_paused, note): a dict with
  `status`, which is `created` (then with `run_id`), `exists` (then with `reason`) or `paused`. No such DAG:
  SupervisorNotFound.
- `previous_task_instance` (task_id, before, map_index, state): a dict of its fields. Not found: SupervisorNotFound.
- `previous_run` (state): a dict of the fields of the DagRun before this one. Not found: SupervisorNotFound.
- `triggering_asset_events` (): in parts, lists of dicts of the fields of the events that triggered the run, oldest
  first.
- `asset_events` (name, uri, alias, after, before, ascending, limit): such lists for one asset or alias.
- `task_state_get` (key): a value of the task's own state. Not found: SupervisorNotFound.
- `task_state_set` (key, value, seconds): nothing. `seconds` is how long the value is kept; None: as the setting
  `retention.task_state_days` says. `task_state_delete` (key), `task_state_clear` (): nothing.
- `asset_state_get` (name, uri, key): a value of an asset's state. Not found: SupervisorNotFound.
- `asset_state_set` (name, uri, key, value), `asset_state_delete` (name, uri, key), `asset_state_clear` (name, uri):
  nothing. Not found: SupervisorNotFound.
- `assets_of_alias` (name): a list of dicts of the `name` and `uri` of the assets that an alias has stood for.
- `hitl_ask` (question): nothing. `question` is a dict of `subject`, `body`, `options`, `defaults`, `multiple`, `params`
  and `assigned_users`.
- `hitl_get` (): a dict of the question that the task has asked, and of its answer. Not found: SupervisorNotFound.
- `hitl_answer` (chosen_options, params_input): the same, after this answer for nobody.
- `deadline_place` (number, at, interval): nothing. When a deadline of the run is due: `interval` seconds after `at`, or
  after the moment that the scheduler knows. Not found: SupervisorNotFound.
- `max_map_length` (): that setting, in runs without a scheduler; a launch has it.
- `asset_get` (name): a dict of the fields of an asset. Not found: SupervisorNotFound.
- `source_get` (content_hash): the text of a source of the version that is run. Not found: SupervisorNotFound.
"""

from __future__ import annotations

from asynsched.authoring.masking import learn_answer
from asynsched.errors import AsynschedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Protocol
else:
    # `typing` is not worth its import to every DAG file.
    Protocol = object


NOT_WHILE_PARSED = (
    "this is available while a task runs, not while a DAG file is imported: use a template such as"
    " {{ var.value.name }}, or do it inside the task"
)


class Supervisor(Protocol):
    """Answers the requests of a task."""

    def request(self, operation: str, **arguments: Any) -> Any:
        """Return the answer.

        Raises SupervisorNotFound if the requested object does not exist, and SupervisorError if the request cannot be
        answered; the message says why.
        """


class SupervisorError(AsynschedError):
    """A request of a task could not be answered."""


class SupervisorNotFound(SupervisorError, KeyError):
    """A task requested something that does not exist."""

    def __str__(self) -> str:
        return Exception.__str__(self)


_current: Supervisor | None = None
_runs_tasks = False


def set_supervisor(supervisor: Supervisor | None, *, loads_file: bool = False) -> None:
    """Set the supervisor of this process, or None. `loads_file`: until the next call, a DAG file is being imported."""
    global _current, _runs_tasks
    _current, _runs_tasks = supervisor, supervisor is not None and not loads_file


def runs_tasks() -> bool:
    """Return whether user code runs now that is not the top level of a DAG file: of a task, a callback, a trigger."""
    return _runs_tasks


def current_supervisor() -> Supervisor | None:
    """Return the supervisor of this process; None if there is none."""
    return _current


def ask(operation: str, **arguments: Any) -> Any:
    """Return the answer to a request. Raises SupervisorError, also if there is no supervisor."""
    if _current is None:
        raise SupervisorError(f"{operation}: {NOT_WHILE_PARSED}")
    answer = _current.request(operation, **arguments)
    learn_answer(operation, arguments, answer)
    return answer


def ask_or_none(operation: str, **arguments: Any) -> Any:
    """Return the answer to a request; None if the object does not exist. Raises SupervisorError like `ask`."""
    try:
        return ask(operation, **arguments)
    except SupervisorNotFound:
        return None


def ask_in_parts(operation: str, **arguments: Any) -> Iterator[Any]:
    """Yield the parts of an answer that may be too large for one message. Raises SupervisorError like `ask`."""
    place = None
    while True:
        part = ask(operation, **arguments, place=place)
        yield part["found"]
        place = part["place"]
        if place is None:
            return
