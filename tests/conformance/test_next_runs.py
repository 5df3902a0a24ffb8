"""`dags next`, and so the scheduler, computes the runs that Airflow computed."""

from datetime import timedelta
from itertools import groupby, islice

import msgspec
import pytest

from asynsched.scheduling.creation.scheduled_runs import runs_after
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.encode import serialize_dag
from asynsched.timetables import DataInterval, decode
from tests.conformance.dag_text import HEADER, dag_text, usable_cases
from tests.conformance.test_timetables import instant
from tests.unit.authoring.loading import load_one

FIELDS = ("logical_date", "data_interval_start", "data_interval_end", "run_after")


def kind_of(case):
    return case["kind"]


GROUPS = {kind: list(cases) for kind, cases in groupby(sorted(usable_cases(), key=kind_of), key=kind_of)}


def answers(case):
    """Return the runs of the case's DAG, loaded from its text, stored as JSON, and planned."""
    dag = decode_dag(msgspec.json.encode(serialize_dag(load_one(HEADER + dag_text(case)))))
    last = case.get("last_run")
    interval = last and DataInterval(instant(last["data_interval_start"]), instant(last["data_interval_end"]))
    now = instant(case["now"])
    timetable = decode(dag.timetable)
    if case["advance"] == "fixed":
        return list(islice(runs_after(dag, timetable, interval, now), case["n"]))
    runs = []
    while len(runs) < case["n"] and (info := next(runs_after(dag, timetable, interval, now), None)):
        runs.append(info)
        interval, now = info.data_interval, max(now, info.run_after) + timedelta(seconds=case.get("step_seconds", 1))
    return runs


@pytest.mark.parametrize("kind", GROUPS)
def test_the_next_runs_of_a_dag_file_are_those_of_airflow(kind):
    wrong = []
    for case in GROUPS[kind]:
        got = [(info.logical_date, *info.data_interval, info.run_after) for info in answers(case)]
        wanted = [tuple(instant(run[field]) for field in FIELDS) for run in case["runs"]]
        if got != wanted:
            wrong.append(f"{case['id']}: wanted {wanted}, got {got}")
    assert not wrong, f"{len(wrong)} of {len(GROUPS[kind])} cases disagree:\n" + "\n".join(wrong[:5])
