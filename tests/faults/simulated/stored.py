"""The stored task instances, runs and callbacks, read independently of the tested program."""

from typing import NamedTuple

from tests.faults.simulated.worlds import inline_database


class TaskRow(NamedTuple):
    """The checked fields of a task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    token: str | None
    lease_epoch: int
    pool: str
    pool_slots: int
    next_try_at: int | None
    result_length: int | None
    reason: str
    machine_kills: int


class RunRow(NamedTuple):
    """The checked fields of a run."""

    dag_id: str
    run_id: str
    id: int
    state: str
    lease_epoch: int
    stop: str | None
    ended_at: int | None
    version_hash: str | None


class DagRow(NamedTuple):
    """The checked fields of a DAG."""

    dag_id: str
    is_active: bool
    file_path: str
    version_hash: str


_TASKS = (
    "SELECT r.dag_id, r.run_id, t.task_id, t.map_index, t.state, t.try_number, t.token, t.lease_epoch, t.pool,"
    " t.pool_slots, t.next_try_at, t.result_length, t.reason, t.machine_kills"
    " FROM task_instance t JOIN dag_run r ON r.id = t.dag_run_id ORDER BY t.id"
)
_RUNS = (
    "SELECT r.dag_id, r.run_id, r.id, r.state, r.lease_epoch, r.stop, r.ended_at, v.version_hash"
    " FROM dag_run r LEFT JOIN dag_version v ON v.id = r.version_id ORDER BY r.id"
)
_DAGS = (
    "SELECT d.dag_id, d.is_active, d.file_path, v.version_hash"
    " FROM dag d JOIN dag_version v ON v.id = d.version_id ORDER BY d.dag_id"
)
_CALLBACKS = "SELECT id, state, token FROM callback_request ORDER BY id"
_REQUESTS = "SELECT w.id, r.dag_id, r.run_id FROM run_request w JOIN dag_run r ON r.id = w.dag_run_id ORDER BY w.id"

_TO_COME = {
    "a schedule calls for another run": "SELECT count(*) FROM dag WHERE next_dagrun_create_after IS NOT NULL",
    "an update of an asset waits": "SELECT count(*) FROM asset_dag_run_queue",
    "a request about a run is not carried out": "SELECT count(*) FROM run_request",
}


class Stored:
    """The database as it is now.

    Attributes:
        tasks: Task instances, by DAG, run, task and map index.
        runs: Runs, by DAG and run.
        callbacks: Number, state and token of each callback.
        dags: The DAGs, by their ids, where their files are parsed.
    """

    def __init__(self, *, are_files_parsed: bool = False) -> None:
        self._are_files_parsed = are_files_parsed
        self.dags: dict[str, DagRow] = {}
        self._driver = inline_database().connection.open()
        self._n_changes = -1
        self.tasks: dict[tuple[str, str, str, int], TaskRow] = {}
        self.runs: dict[tuple[str, str], RunRow] = {}
        self.callbacks: list[tuple[int, str, str | None]] = []
        self.read()

    def read(self) -> bool:
        """Read everything again if something was changed; return whether it was."""
        n_changes = self._driver.total_changes
        if n_changes == self._n_changes:
            return False
        self._n_changes = n_changes
        self.tasks = {row[:4]: TaskRow(*row) for row in self._driver.execute(_TASKS)}
        self.runs = {row[:2]: RunRow(*row) for row in self._driver.execute(_RUNS)}
        self.callbacks = self._driver.execute(_CALLBACKS).fetchall()
        if self._are_files_parsed:
            self.dags = {row[0]: DagRow(*row) for row in self._driver.execute(_DAGS)}
        return True

    def requests(self) -> list[tuple[int, str, str]]:
        """Return the open requests: their numbers, DAGs and runs."""
        return self._driver.execute(_REQUESTS).fetchall()

    def parsed_files(self) -> dict[str, str]:
        """Return the parsed files, with the hashes of their texts at that time."""
        return dict(self._driver.execute("SELECT path, content_hash FROM dag_file").fetchall())

    def failing_files(self) -> set[str]:
        """Return the files that could not be used as a whole."""
        query = "SELECT DISTINCT file_path FROM import_error WHERE dag_id IS NULL AND NOT is_warning"
        return {path for (path,) in self._driver.execute(query)}

    def to_come(self) -> str:
        """Return the reason for another run; empty if there is none."""
        return next((what for what, query in _TO_COME.items() if self._driver.execute(query).fetchone()[0]), "")
