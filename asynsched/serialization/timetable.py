"""A DAG's timetable as the scheduler will have it: one of asynsched's own, or what is known of an author's class."""

from asynsched.authoring.dag import DAG
from asynsched.authoring.json_values import check_json
from asynsched.errors import DagError, SerializationError, TimetableError
from asynsched.timetables import CustomTimetable, KnownTimetable, Timetable, decode
from asynsched.timetables.assets import time_part
from asynsched.timetables.schedule import is_authors_own


def stored_timetable(dag: DAG) -> KnownTimetable:
    """Return the part of a DAG's schedule that depends on time, as it can be written and read again.

    Raises:
        SerializationError: It cannot be; the message names the DAG and the class.
    """
    timetable = time_part(dag.timetable)
    name = type(timetable).__name__
    try:
        serialized = _described(timetable) if is_authors_own(timetable) else timetable.serialize()
        check_json(serialized, f"what {name}.serialize() returns")
        return decode(serialized)
    except (DagError, NotImplementedError, AttributeError, TypeError) as exc:
        raise SerializationError(f"DAG {dag.dag_id!r}: its timetable {name} cannot be stored: {exc}") from exc


def _described(timetable: Timetable) -> dict[str, object]:
    """Return what is known of an author's timetable. It runs code of the author's."""
    name = type(timetable).__name__
    try:
        return CustomTimetable(
            name,
            fields=timetable.serialize(),
            summary=str(timetable.summary),
            description=str(timetable.description),
            can_be_scheduled=bool(timetable.can_be_scheduled),
            active_runs_limit=timetable.active_runs_limit,
        ).serialize()
    except Exception as exc:
        raise TimetableError(f"{name} raised {type(exc).__name__}: {exc}") from exc
