"""DAG objects of a test, scheduled in virtual time."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from asynsched.authoring.dag import DAG
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SCHEMA_VERSION, ParsedDag, ParseReport
from asynsched.settings import Settings
from asynsched.simulation.script import Script
from asynsched.simulation.simulation import Simulation
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.schema import DagRunRow

SWEEP_SECONDS = 600.0
"""Time between two safety sweeps: long, so that tests depend on messages, and virtual hours take little real time."""


class Simulated(Simulation):
    """A scheduler of these DAGs from `start` on. After `run_for`, its database and executor show the results."""

    def __init__(self, home: Path, dags: Sequence[DAG], script: Script, start: datetime) -> None:
        settings = Settings(home=str(home), dags_folder=str(home / "dags"), sweep_interval=SWEEP_SECONDS)
        super().__init__(settings, map(report_of, dags), script, start)

    async def runs(self, dag_id: str) -> list[DagRunRow]:
        return await self.database.read(list_runs, dag_id=dag_id, limit=10_000)


def report_of(dag: DAG) -> ParseReport:
    """Return the report of a parse of a file with this DAG, without sources."""
    parsed = ParsedDag(serialize_dag(dag), version_hash=f"{dag.dag_id:0>64.64}")
    return ParseReport(SCHEMA_VERSION, path=f"{dag.dag_id}.py", dags=(parsed,))
