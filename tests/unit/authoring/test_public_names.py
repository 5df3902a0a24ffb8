"""The names that DAG files import: there, and light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import asynsched
from asynsched import EmptyOperator, TriggerRule, WeightRule, timetables

NAMED_ONLY = {
    "Change", "Client", "DagRunKey", "Missed", "ObjectStoragePath", "OpenTelemetryMetrics", "PrometheusMetrics",
    "Scheduler", "Settings", "TaskInstanceKey",
}  # fmt: skip
ENUMS = {"DagRunState", "DagRunType", "State", "TaskInstanceState", "WeekDay"}
TIMETABLES = set(timetables.__all__)
AUTHORING = sorted(set(asynsched.__all__) - ENUMS - TIMETABLES)
HEAVY = {
    "typing", "inspect", "logging", "asyncio", "enum", "re", "dataclasses", "json", "subprocess", "zoneinfo", "msgspec",
    "jinja2", "jsonschema", "croniter", "dateutil", "sqlalchemy", "pydantic", "structlog", "anyio",
}  # fmt: skip


def test_authoring_names_import_nothing_heavy():
    names = ", ".join(AUTHORING)
    code = f"import sys; before = set(sys.modules); from asynsched import {names}; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-S", "-P", "-c", code], capture_output=True, text=True, check=True, env={
        "PYTHONPATH": str(Path(asynsched.__file__).parent.parent)
    })  # fmt: skip
    assert HEAVY.isdisjoint(loaded.stdout.split())


def test_every_public_name_is_there_and_known_to_type_checkers():
    source = Path(asynsched.__file__).read_text()
    block = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If))
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported - {"Any"} | {"__version__"} == set(dir(asynsched)) == {*asynsched.__all__, *NAMED_ONLY}
    for name in dir(asynsched):
        assert getattr(asynsched, name) is not None


def test_rules_are_texts_that_can_be_listed_and_looked_up_as_airflows_are():
    assert (TriggerRule.ALL_DONE, TriggerRule.ALL_DONE.value, TriggerRule("all_done").name) == (
        "all_done", "all_done", "ALL_DONE",
    )  # fmt: skip
    assert list(WeightRule) == ["downstream", "upstream", "absolute"]
    assert len(list(TriggerRule)) == 13
    # A rule works wherever a text does: a task may be named like one, and be written as JSON.
    assert type(EmptyOperator(task_id=TriggerRule.ALL_DONE).task_id) is str
    with pytest.raises(ValueError, match="'al_done' is not a TriggerRule; use one of all_success"):
        TriggerRule("al_done")
