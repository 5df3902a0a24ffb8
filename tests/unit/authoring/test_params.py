"""Params: valid ones, and their values in a run."""

from collections import deque
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from asynsched import DAG, BashOperator, DagError, Param, ParamValidationError, TaskGroup
from asynsched.authoring import json_schemas
from asynsched.authoring.params import ParamsDict
from asynsched.scheduling.creation.triggering import validate_conf
from asynsched.serialization.encode import serialize_dag
from asynsched.web.pages.trigger import ORIGINAL, PREFIX, Field, field_of, read_fields
from tests.unit.authoring.one_task import rendered


def test_conf_overrides_params_and_must_fit_them(dag):
    assert rendered(dag, "{{ params.n }} {{ dag_run.conf.extra }}", conf={"n": 5, "extra": 1}) == "5 1"
    with pytest.raises(ParamValidationError, match=r"run 'r1': param 'n': 'x' is not of type 'integer'"):
        rendered(dag, "", conf={"n": "x"})


def test_a_dag_without_a_schedule_may_have_an_invalid_default_which_no_run_takes():
    dag = serialize_dag(DAG("d", params={"name": Param("", type="string", minLength=1)}))
    validate_conf(dag, {"name": "Ada"})
    with pytest.raises(DagError, match="The DAG 'd', param 'name': '' should be non-empty"):
        validate_conf(dag, {})
    field = field_of("name", dag.params["name"], "", ZoneInfo("UTC"))
    assert (field.kind, field.text, field.rules) == ("text", "", {"minlength": 1})


DAY = {"type": "string", "format": "date-time"}
UNTOUCHED: dict[str, tuple[Any, dict[str, Any]]] = {
    "an instant of another zone": ("2026-07-01T00:00:00+00:00", DAY),
    "an instant to the microsecond": ("2026-07-01T00:00:00.000001Z", DAY),
    "no instant": (None, {**DAY, "type": ["string", "null"]}),
    "a version": ("1.10", {}),
    "an empty text": ("", {}),
    "a text like a number": ("123", {}),
    "a text of lines": ("a\nb", {}),
    "a number": (1.5, {}),
    "a list": ([1, {"a": "b"}], {}),
    "nothing": (None, {}),
    "a former choice": ("old", {"enum": ["new", "old"]}),
    "examples and another": (["x", "y"], {"type": "array", "examples": ["x"]}),
    "an unknown truth": (None, {"type": ["boolean", "null"]}),
    "a truth": (True, {"type": "boolean"}),
    "a time": ("10:30:00", {"type": "string", "format": "time"}),
    "an object": ({"a": 1}, {"type": "object"}),
    "the end of time": ("9999-12-31T23:59:59+00:00", DAY),
}


def sent_by_a_browser(name: str, field: Field) -> dict[str, list[str]]:
    """Return the form data of an input that stays as it was shown."""
    listed = [value for value, _ in field.options]
    match field.kind:
        case "boolean":
            given = ["yes"] if field.chosen == ("true",) else []
        case "choice":
            given = [next((one for one in listed if one in field.chosen), listed[0])]
        case "choices":
            given = [one for one in listed if one in field.chosen]
        case "datetime":
            given = [field.text.removesuffix(":00")]
        case "longtext" | "list" | "json":
            given = [field.text.replace("\n", "\r\n")]
        case _:
            given = [field.text.replace("\n", "")]
    return {f"{ORIGINAL}{name}": [field.original], f"{PREFIX}{name}": given}


@pytest.mark.parametrize("what", UNTOUCHED)
def test_a_form_changes_no_param_that_nobody_has_touched(what):
    value, schema = UNTOUCHED[what]
    params, zone = serialize_dag(DAG("d", params={"p": Param(value, **schema)})).params, ZoneInfo("Europe/Berlin")
    values, [field] = read_fields(params, sent_by_a_browser("p", field_of("p", params["p"], value, zone)), zone)
    assert (values, field.problem) == ({"p": value}, "")


@pytest.mark.parametrize(
    ("schema", "expected"), [({"type": "boolean"}, False), ({"type": "string"}, ""), ({"type": "array"}, [])]
)
def test_an_empty_input_without_a_default_gives_the_empty_value_of_its_type(schema, expected):
    params, zone = serialize_dag(DAG("d", schedule=None, params={"p": Param(**schema)})).params, ZoneInfo("UTC")
    sent = sent_by_a_browser("p", field_of("p", params["p"], params["p"].value, zone))
    assert read_fields(params, sent, zone)[0] == {"p": expected}


def test_a_param_without_a_schema_takes_values_of_any_type():
    params, zone = serialize_dag(DAG("d", params={"p": Param(5)})).params, ZoneInfo("UTC")
    shown = field_of("p", params["p"], "abc", zone)
    assert (shown.kind, shown.text) == ("text", "abc")
    sent = sent_by_a_browser("p", shown)
    assert read_fields(params, sent, zone)[0] == {"p": "abc"}
    assert read_fields(params, sent | {f"{PREFIX}p": ["[1]"]}, zone)[0] == {"p": [1]}


def test_an_instant_that_somebody_enters_is_of_the_zone_that_the_form_shows():
    params, zone = (
        serialize_dag(DAG("d", params={"at": Param("2026-07-01T00:00:00+00:00", **DAY)})).params,
        ZoneInfo("Europe/Berlin"),
    )
    shown = field_of("at", params["at"], params["at"].value, zone)
    assert (shown.title, shown.text) == ("at (Europe/Berlin)", "2026-07-01T02:00:00")
    sent = sent_by_a_browser("at", shown) | {f"{PREFIX}at": ["2026-07-01T03:00"]}
    assert read_fields(params, sent, zone)[0] == {"at": "2026-07-01T03:00:00+02:00"}


def test_params_of_default_args_win_on_their_level():
    group = {"params": {"b": "group", "c": "group"}}
    with DAG("d", params={"a": Param(1, type="integer"), "b": "dag"}, default_args={"params": {"a": "default"}}) as dag:
        with TaskGroup("g", default_args=group):
            BashOperator(task_id="both", bash_command="", params={"b": 1}, default_args={"params": {"b": 2, "d": 3}})
            BashOperator(task_id="own", bash_command="", params={"b": 1})
            BashOperator(task_id="none", bash_command="")
        BashOperator(task_id="default", bash_command="", default_args={"params": {"a": 4}})
    assert dag.params.dump() == {"a": "default", "b": "dag"}
    assert {task.task_id: task.params.dump() for task in dag.tasks} == {
        "g.both": {"a": "default", "b": 2, "d": 3},
        "g.own": {"a": "default", "b": 1},
        "g.none": {"a": "default", "b": "group", "c": "group"},
        "default": {"a": 4, "b": "dag"},
    }


def test_a_dump_shows_values_and_none_for_a_param_without_a_valid_one():
    params = ParamsDict({"a": 1, "missing": Param(type="string"), "wrong": Param("x", type="integer")})
    assert params.dump() == {"a": 1, "missing": None, "wrong": None}
    assert repr(params) == "{'a': 1, 'missing': None, 'wrong': None}"


def test_a_date_param_must_be_a_date_with_a_zone():
    param = Param(type="string", format="date-time")
    assert param.resolve("2024-05-01T12:30:00+02:00") == "2024-05-01T12:30:00+02:00"
    for wrong in ("yesterday", "2024-05-01", "2024-05-01T12:30:00"):
        with pytest.raises(ParamValidationError, match=f"'{wrong}' is not a 'date-time'"):
            param.resolve(wrong)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"format": "date"}, "2024-02-29", "2023-02-29"),
        ({"format": "time"}, "12:30:00", "25:00:00"),
        ({"format": "uuid"}, "6c1a2f5e-3c55-4f0b-9d8d-0a3a0f6f0a11", "6c1a"),
        ({"format": "ipv4"}, "10.0.0.1", "10.0.0.256"),
        ({"format": "email"}, "a@b.c", "a"),
        ({"format": "regex"}, "a+", "("),
        ({"$ref": "#/$defs/size", "$defs": {"size": {"enum": ["s", "m"]}}}, "m", "l"),
        ({"oneOf": [{"type": "integer"}, {"type": "array", "items": {"const": 1}, "maxItems": 2}]}, [1, 1], [1, 1, 1]),
        ({"type": "object", "required": ["a"], "dependentRequired": {"b": ["c"]}}, {"a": 1}, {"a": 1, "b": 2}),
        ({"if": {"minimum": 10}, "then": {"multipleOf": 10}}, 20, 21),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_param_takes_what_its_json_schema_allows_and_nothing_else(schema, right, wrong):
    param = Param(schema=schema)
    assert param.resolve(right) == right
    with pytest.raises(ParamValidationError):
        param.resolve(wrong)


@pytest.mark.parametrize("elsewhere", ["#/$defs/no", "http://127.0.0.1:9/schema.json", "file:///etc/hostname"])
def test_a_schema_is_never_fetched_from_elsewhere(elsewhere):
    with pytest.raises(ParamValidationError, match="refers to something that it does not contain"):
        Param(schema={"$ref": elsewhere}).resolve(1)


SLOW = "^(a|aa)+$"
"""A pattern that takes years for the value below."""
LONG = "a" * 60 + "!"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": SLOW}, LONG),
        ({"patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"additionalProperties": False, "patternProperties": {SLOW: {}}}, {LONG: 1}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": {"pattern": SLOW}}, [LONG]),
        ({"not": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": SLOW}}, LONG),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"propertyNames": {"pattern": SLOW}}}}, {LONG: 1}),
    ],
    ids=["pattern", "patternProperties", "additionalProperties", "$schema", "nested $schema", "$ref"],
)
def test_a_value_is_refused_when_its_pattern_takes_too_long(schema, value):
    with pytest.raises(ParamValidationError, match=r"the pattern '\^\(a\|aa\)\+\$' of its schema took too long"):
        Param(schema=schema).resolve(value)


def test_patterns_of_names_go_together_with_other_properties():
    schema = {"properties": {"b": {}}, "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False}
    param = Param(schema=schema)
    assert param.resolve({"a1": 1, "b": "x"}) == {"a1": 1, "b": "x"}
    for wrong, problem in (({"a1": "x"}, "is not of type 'integer'"), ({"c": 1}, r"\('c' was unexpected\)")):
        with pytest.raises(ParamValidationError, match=problem):
            param.resolve(wrong)
    with pytest.raises(ParamValidationError, match="unevaluatedProperties beside patternProperties"):
        Param(schema={"unevaluatedProperties": False, "allOf": [schema]}).check_schema()


def test_a_schema_that_is_nested_too_deeply_is_refused():
    with pytest.raises(ParamValidationError, match="nested too deeply"):
        Param(schema={"pattern": "(" * 3000 + ")" * 3000}).resolve("a")


def doubling(word: str, last: str = "integer") -> dict:
    """Return a schema of thirty parts whose check takes 2³⁰ steps, for a value of the last one's type or another."""
    parts = {f"p{n}": {word: [{"$ref": f"#/$defs/p{n + 1}"}] * 2} for n in range(30)}
    return {"$ref": "#/$defs/p0", "$defs": {**parts, "p30": {"type": last}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling("allOf"), 1),
        (doubling("anyOf"), "no"),
        ({**doubling("allOf"), "$schema": "http://json-schema.org/draft-07/schema#"}, 1),
        ({"unevaluatedProperties": False, **doubling("allOf", "object")}, {"a": 1}),
        ({"$defs": doubling("oneOf")["$defs"], "not": {"$ref": "#/$defs/p0"}}, 1),
    ],
    ids=["allOf", "anyOf", "$schema", "unevaluatedProperties", "not"],
)
def test_a_schema_that_multiplies_its_parts_has_little_time(schema, value, monkeypatch):
    monkeypatch.setattr(json_schemas, "MOST_SECONDS", 0.05)
    with pytest.raises(ParamValidationError, match="to check it against its schema takes more than"):
        Param(schema=schema).resolve(value)


def test_the_params_of_a_run_share_one_limit(monkeypatch):
    monkeypatch.setattr(json_schemas, "MOST_SECONDS", 0.05)
    each = (Param(type="integer").resolve(1) for _ in count())
    with json_schemas.limited_time(), pytest.raises(ParamValidationError, match="takes more than"):
        deque(each)
    assert Param(type="integer").resolve(1) == 1


@pytest.mark.parametrize(
    ("value", "is_unique"),
    [
        ([1, 1.0], False), ([1, True], True), ([0, False, "0", None], True), ([[1], [1.0]], False), ([{}, []], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False), ([{"a": 1}, {"a": "1"}], True), ([["a", [1]], {"a": [1]}], True),
    ],
)  # fmt: skip
def test_items_are_unique_as_in_json(value, is_unique):
    param = Param(schema={"uniqueItems": True})
    if is_unique:
        assert param.resolve(value) == value
    else:
        with pytest.raises(ParamValidationError, match="has non-unique elements"):
            param.resolve(value)
