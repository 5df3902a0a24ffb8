"""Why a DAG has no run: its schedule, its pause, its limits, or its file."""

from collections.abc import Sequence
from datetime import datetime

from asynsched.explaining.owners import with_service
from asynsched.explaining.reason import Explanation, Reason
from asynsched.explaining.tasks import held_up_by
from asynsched.health import LongParse
from asynsched.scheduling.creation.scheduled_runs import Examined, foresee_dag
from asynsched.store.dags.dags import DagRow
from asynsched.store.dags.files import list_errors
from asynsched.store.database import Database


async def explain_dag(
    database: Database, dag: DagRow, *, now: datetime, unserved: Reason | None, parses: Sequence[LongParse] = ()
) -> Explanation:
    """Return why no run of a DAG is created at this moment.

    Args:
        database: Only read.
        dag: The DAG, active or not.
        unserved: Why no scheduler works; None if one serves.
        parses: The parses of any file that take long.
    """
    reasons = [
        Reason("parse", parse.sentence.rstrip("."), "the parse has ended")
        for parse in parses
        if parse.file == dag.file_path
    ]
    if dag.has_errors:
        errors = await database.read(list_errors, dag.file_path)
        reasons += [
            Reason("file", f"its file has an error: {error.message}; its last good version is used", "it is mended")
            for error in errors
            if not error.is_warning and error.dag_id in (None, dag.dag_id)
        ]
    if not dag.is_active:
        text = f"the file {dag.file_path} is gone, or no longer has this DAG"
        reasons.append(Reason("removed", text, "a file of the DAG folder has it again"))
    elif dag.is_paused:
        reasons.append(Reason("paused", "it is paused", f"a user unpauses it: `asynsched dags unpause {dag.dag_id}`"))
    else:
        reasons += _of_schedule(dag, await database.read(foresee_dag, dag.dag_id, now))
    found = with_service(reasons, unserved)
    answer = held_up_by(found) or "Nothing holds it up: a run is created now."
    state = "paused" if dag.is_paused else "active"
    return Explanation(dag.dag_id, state if dag.is_active else "removed", answer, found)


def _of_schedule(dag: DagRow, examined: Examined) -> list[Reason]:
    if examined.created is not None or examined.triggered is not None:
        return []
    if examined.error:
        return [Reason("schedule", examined.error, "its schedule is mended")]
    if examined.is_held_back:
        text = f"a run is due, and max_active_runs ({dag.max_active_runs}) are active"
        return [Reason("max_active_runs", text, "one of them ends")]
    reasons = []
    if examined.asks:
        text = "its timetable, which is code of its file, has not said yet which run is next"
        reasons.append(Reason("timetable", text, "its file has been parsed again"))
    if examined.waits_for:
        reasons.append(Reason("assets", examined.waits_for, "these are updated"))
    if examined.due_at is not None:
        reasons.append(Reason("schedule", "the next run is not due yet", "its time comes", examined.due_at))
    if not reasons:
        release = f"a user triggers it: `asynsched dags trigger {dag.dag_id}`"
        summary = dag.schedule_summary
        text = f"its schedule, {summary}, gives no further run" if summary else "it has no schedule"
        reasons.append(Reason("schedule", text, release))
    return reasons
