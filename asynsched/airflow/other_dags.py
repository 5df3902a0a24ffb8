"""What a task can know of other DAGs and do with them by Airflow's functions and tables, without Airflow's database.

Airflow 2 lets tasks use the database for this. Here a task asks the scheduler, as operators and sensors do, and what it
cannot ask for is one error where it is used: files import these names for rare cases, or for annotations.
"""

from __future__ import annotations

from asynsched.airflow.exceptions import DagNotFound
from asynsched.airflow.session import NoTable
from asynsched.authoring import defaults
from asynsched.authoring.exceptions import AsynschedException, DagRunAlreadyExists
from asynsched.authoring.operators.other_dags import request_run
from asynsched.authoring.running.task_instance import DagRun
from asynsched.authoring.supervisor import SupervisorNotFound, ask, ask_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from typing import Any, NoReturn


def trigger_dag(
    dag_id: str,
    run_id: str | None = None,
    conf: dict[str, Any] | str | None = None,
    execution_date: dt.datetime | str | None = None,
    replace_microseconds: bool = True,
    *,
    logical_date: dt.datetime | str | None = None,
    run_after: dt.datetime | str | None = None,
    note: str | None = None,
    triggered_by: Any = None,
    triggering_user_name: str | None = None,
    session: Any = None,
) -> DagRun:
    """Trigger a run of a DAG from within a task, and return the run.

    Args:
        conf: The run's conf, as JSON values, or as the JSON text of a dict.
        execution_date: The name that `logical_date` has in Airflow 2.
        replace_microseconds: Whether a given logical date loses its microseconds.
        logical_date: By default now, or none if `run_after` is given.
        triggered_by: Accepted for Airflow's files, as are `triggering_user_name` and `session`: the scheduler knows
            which task asks.

    Raises:
        DagNotFound: There is no such DAG.
        DagRunAlreadyExists: There is a run with this run_id or logical date.
        ValueError: The conf is no JSON.
    """
    del triggered_by, triggering_user_name, session
    date = logical_date or execution_date
    if replace_microseconds and date is not None and not isinstance(date, str):
        date = date.replace(microsecond=0)
    try:
        answer = request_run(
            dag_id,
            run_id=run_id,
            conf=conf,
            logical_date=date,
            has_logical_date=date is not None or run_after is None,
            run_after=run_after,
            note=note,
        )
    except SupervisorNotFound:
        raise DagNotFound(f"there is no DAG {dag_id!r}") from None
    if answer["status"] == "exists":
        raise DagRunAlreadyExists(answer["reason"])
    return DagRun.of_fields(ask("dag_run", dag_id=dag_id, run_id=answer["run_id"]))


class DagModel(metaclass=NoTable):
    """A DAG as the scheduler knows it. `get_dagmodel` and `get_current` work in a task; there are no columns to query.

    Attributes:
        is_active: Whether its file still defines it; `is_stale` is the opposite.
        relative_fileloc: Its file, relative to the DAG folder.
    """

    def __init__(self, **fields: Any) -> None:
        self.dag_id: str = fields["dag_id"]
        self.is_paused: bool = fields["is_paused"]
        self.is_active: bool = fields["is_active"]
        self.is_stale = not self.is_active
        self.has_import_errors: bool = fields["has_errors"]
        self.relative_fileloc: str = fields["file_path"]
        self.fileloc = f"{defaults.dags_folder}/{self.relative_fileloc}"

    @staticmethod
    def get_dagmodel(dag_id: str, session: Any = None) -> DagModel | None:
        """Return a DAG; None if there never was one of this dag_id."""
        del session
        found = ask_or_none("dag_get", dag_id=dag_id)
        return None if found is None else DagModel(**found)

    @classmethod
    def get_current(cls, dag_id: str, session: Any = None) -> DagModel | None:
        """Return a DAG, like `get_dagmodel`."""
        return cls.get_dagmodel(dag_id, session)

    def get_is_paused(self, *, session: Any = None) -> bool:
        """Return whether it is paused."""
        del session
        return self.is_paused

    def set_is_paused(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise AsynschedException: a task cannot pause DAGs."""
        raise AsynschedException(
            f"a task cannot pause or unpause the DAG {self.dag_id!r}; use `asynsched dags pause` and `unpause`"
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a DagModel has no {name!r} here: a task can read {', '.join(vars(self))}")

    def __repr__(self) -> str:
        return f"<DAG: {self.dag_id}>"


class DagBag:
    """Stands for Airflow's reader of all DAG files."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise AsynschedException(
            "DAG files cannot read the other DAG files: use DagModel.get_dagmodel(dag_id) in a task for one DAG, and"
            " `asynsched preview` in place of a test that loads all files"
        )


class SerializedDagModel(metaclass=NoTable):
    """Stands for the table of serialized DAGs."""
