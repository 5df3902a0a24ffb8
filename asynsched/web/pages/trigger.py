"""`/dags/{dag_id}/trigger`: a form made of the DAG's params, which creates a run."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from anyio.to_thread import run_sync
from starlette.responses import Response

from asynsched.authoring.exceptions import ParamValidationError
from asynsched.authoring.params import Param
from asynsched.errors import AsynschedError
from asynsched.queries.paging import BadRequest
from asynsched.queries.run_actions import trigger_run
from asynsched.queries.runs import get_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.serialization.schema import SerializedDag, SerializedParam
from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.pages.dag import Known, read_known
from asynsched.web.pages.page import PAGE, form_of, one, preferences_of, redirect, show

PREFIX, ORIGINAL = "param:", "was:"
"""Before the name of a param, in the names of its input and of the value that the form began with, as JSON."""


class Field(NamedTuple):
    """A param in the form.

    Attributes:
        kind: Of the input: text, longtext, number, boolean, choice, choices, date, datetime, time, list or json.
        text: What the input shows.
        chosen: The chosen options, as their JSON.
        options: The JSON and the name of each option.
        original: The JSON of the value that the form began with, which is kept if nobody changes the input.
        rules: Attributes of the input.
        problem: Why its value does not fit.
    """

    name: str
    title: str
    help: str
    section: str
    kind: str
    text: str
    chosen: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    original: str
    rules: Mapping[str, Any]
    is_needed: bool
    problem: str = ""


@PAGE.endpoint("GET", "/dags/{dag_id}/trigger", permission=Permission.OPERATE)
async def form(call: Call, dag_id: str, conf: str = "", like: str = "") -> Response:
    """Show the form, with the params' defaults, or with the values of `conf`, a JSON object, or of the run `like`."""
    known = await read_known(call, dag_id)
    try:
        given = _read_object(conf) if conf else {}
    except ValueError as exc:
        raise BadRequest(str(exc)) from exc
    if like:
        given = (await call.context.ask(get_run, dag_id, like)).conf or {}
    zone = preferences_of(call.request).zone
    fields = [field_of(name, param, given.get(name, param.value), zone) for name, param in known.dag.params.items()]
    return await _show(call, known, fields, {"conf": as_text(_others(known.dag, given))})


@PAGE.endpoint("POST", "/dags/{dag_id}/trigger", permission=Permission.OPERATE)
async def create(call: Call, dag_id: str) -> Response:
    """Create the run, and go to it; or show the form again, with what is wrong."""
    known = await read_known(call, dag_id)
    sent, zone = await form_of(call), preferences_of(call.request).zone
    # In a thread: the pattern of a schema may take its time.
    values, fields = await run_sync(read_together, known.dag.params, sent, zone)
    problem = "Some values do not fit." if any(field.problem for field in fields) else ""
    try:
        conf = {**_read_object(one(sent, "conf")), **values}
        date, start = (_read_instant(one(sent, name), zone) for name in ("logical_date", "run_after"))
        if not problem:
            wanted = Trigger(run_id=one(sent, "run_id") or None, logical_date=date, conf=conf, run_after=start)
            run = await trigger_run(call.context, call.who.name, dag_id, wanted)
            return redirect(call, "dags", run.dag_id, "runs", run.run_id, said=f"{run.run_id} is queued.")
    except (AsynschedError, ValueError) as exc:
        problem = str(exc)
    given = {name: one(sent, name) for name in ("conf", "run_id", "logical_date", "run_after")}
    return await _show(call, known, fields, given, problem)


async def _show(call: Call, known: Known, fields: list[Field], given: Mapping[str, str], problem: str = "") -> Response:
    return await show(
        call, "trigger.html", status=422 if problem else 200, known=known, view="trigger", fields=fields, given=given,
        problem=problem,
    )  # fmt: skip


def field_of(name: str, param: SerializedParam, value: Any, zone: ZoneInfo) -> Field:
    """Return the input of a param, as its schema wants it, with a value; instants are shown in the zone."""
    schema = _schema_of(param, value)
    kind, text = _input_of(schema, value, zone)
    listed = _listed(schema, kind)
    chosen = value if kind == "choices" and isinstance(value, list) else [value]
    if kind in ("choice", "choices") and (value is not None or None in listed):
        listed += [one for one in chosen if one not in listed]
    names = schema.get("values_display") or {}
    rules = {
        html: schema[key]
        for key, html in (
            ("minimum", "min"),
            ("maximum", "max"),
            ("minLength", "minlength"),
            ("maxLength", "maxlength"),
        )
        if isinstance(schema.get(key), int | float)
    }
    if kind == "number":
        rules["step"] = schema.get("multipleOf", 1 if "integer" in _types(schema) else "any")
    title = str(schema.get("title") or name)
    return Field(
        name=name, title=f"{title} ({zone.key})" if kind == "datetime" else title,
        help=str(param.description or schema.get("description") or schema.get("description_md") or ""),
        section=str(schema.get("section") or ""), kind=kind, text=text, chosen=tuple(_json(one) for one in chosen),
        options=tuple((_json(item), str(names.get(str(item), item))) for item in listed), original=_json(value),
        rules=rules, is_needed=not param.has_default and "null" not in _types(schema),
    )  # fmt: skip


def _schema_of(param: SerializedParam, value: Any) -> Mapping[str, Any]:
    """Return the schema of a param; one that its default and its value tell if it has none."""
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "object", dict: "object"}
    found = kinds.get(type(value))
    return param.schema or ({"type": found} if found is not None and found == kinds.get(type(param.value)) else {})


def _listed(schema: Mapping[str, Any], kind: str) -> list[Any]:
    """Return the values among which one chooses."""
    if kind == "choice" and "enum" not in schema:
        return [None, True, False]
    listed = [*schema.get("enum", ()), *(schema.get("items", {}).get("enum", ()) if kind == "choices" else ())]
    return listed or (list(schema.get("examples", ())) if kind == "choices" else [])


def read_together(
    params: Mapping[str, SerializedParam], sent: Mapping[str, list[str]], zone: ZoneInfo
) -> tuple[dict[str, Any], list[Field]]:
    """Call `read_fields` with one limit of time for the checks of all values."""
    from asynsched.authoring.json_schemas import limited_time  # loads jsonschema

    with limited_time():
        return read_fields(params, sent, zone)


def read_fields(
    params: Mapping[str, SerializedParam], sent: Mapping[str, list[str]], zone: ZoneInfo
) -> tuple[dict[str, Any], list[Field]]:
    """Return the values that a form gives to params, and its fields with what is wrong."""
    values: dict[str, Any] = {}
    fields = []
    for name, param in params.items():
        given, original = sent.get(f"{PREFIX}{name}", []), sent.get(f"{ORIGINAL}{name}", [])
        shown = field_of(name, param, param.value, zone)
        try:
            if original:
                shown = field_of(name, param, _read_json(original[-1]), zone)
            values[name] = _value_of(param, shown, given, zone, is_original=bool(original))
            fields.append(field_of(name, param, values[name], zone)._replace(original=shown.original))
        except (ParamValidationError, ValueError) as exc:
            text = given[-1] if given else ""
            fields.append(shown._replace(text=text, chosen=tuple(given), problem=str(exc).partition(" (the value")[0]))
    return values, fields


def _value_of(param: SerializedParam, shown: Field, given: list[str], zone: ZoneInfo, *, is_original: bool) -> Any:
    """Return the value that an input gives to a param. Raises ParamValidationError, and ValueError.

    Args:
        is_original: Whether the input has shown the value with which the form began. That is kept if it is valid.
    """
    checked, value = Param(schema=param.schema), _read_json(shown.original)
    if is_original and _is_unchanged(shown, given):
        try:
            return checked.resolve(value)
        except ParamValidationError:
            pass
    return checked.resolve(_read(shown.kind, _schema_of(param, value), given, zone))


def _is_unchanged(shown: Field, given: list[str]) -> bool:
    """Return whether an input has sent what it showed."""
    match shown.kind:
        case "boolean":
            return ("yes" in given) is (shown.chosen == ("true",))
        case "choices":
            return set(given) == set(shown.chosen)
        case "choice":
            return given == list(shown.chosen)
        case "datetime" if given and given[-1] and shown.text:
            # Browsers leave out seconds that are zero.
            return _read_local(given[-1], UTC) == _read_local(shown.text, UTC)
        case _:
            return bool(given) and given[-1].replace("\r\n", "\n") == shown.text.replace("\r\n", "\n")


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    found = schema.get("type", ())
    return (found,) if isinstance(found, str) else tuple(found)


def _input_of(schema: Mapping[str, Any], value: Any, zone: ZoneInfo) -> tuple[str, str]:
    """Return the kind of an input, and its text."""
    kind = _kind(schema)
    text = _text(kind, value, zone)
    return ("longtext" if kind == "text" and "\n" in text else kind), text


def _kind(schema: Mapping[str, Any]) -> str:
    types = _types(schema)
    if "enum" in schema:
        return "choice"
    if "array" in types:
        items = schema.get("items") or {}
        is_choice = "enum" in items or "examples" in schema
        return "choices" if is_choice else "list" if _types(items) == ("string",) or not items else "json"
    if "boolean" in types:
        return "choice" if "null" in types else "boolean"
    if {"integer", "number"} & {*types}:
        return "number"
    if "string" in types:
        known = {"date": "date", "date-time": "datetime", "time": "time", "multiline": "longtext"}
        return known.get(str(schema.get("format", "")), "text")
    return "text" if not schema else "json"


def _text(kind: str, value: Any, zone: ZoneInfo) -> str:
    if value is None:
        return ""
    if kind == "list" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    if kind in ("list", "json") or not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, indent=2 if kind == "json" else None)
    if kind == "datetime":
        try:
            found = datetime.fromisoformat(value)
            return (found if found.tzinfo is None else found.astimezone(zone)).isoformat()[:19]
        except (ValueError, OverflowError):
            return value[:19].replace(" ", "T")
    return value


def _read(kind: str, schema: Mapping[str, Any], given: list[str], zone: ZoneInfo) -> Any:
    """Return the value that a field was given. Raises ValueError."""
    if kind == "boolean":
        return "yes" in given
    if kind in ("choices", "choice"):
        chosen = [_read_json(item) for item in given if item]
        return chosen if kind == "choices" else chosen[-1] if chosen else None
    text = given[-1] if given else ""
    types = _types(schema)
    if not text.strip() and ("null" in types or (not schema and not text)):
        return None
    match kind:
        case "number":
            return _read_json(text.strip())
        case "json":
            return _read_json(text)
        case "list":
            return _read_list(text)
        case "datetime":
            return _read_local(text, zone).isoformat()
        case "time":
            return text if text.count(":") > 1 else f"{text}:00"
        case "text" if not schema:
            return _read_any(text)
        case _:
            return text.replace("\r\n", "\n")


def _read_list(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        found = _read_json(text)
        if isinstance(found, list):
            return found
    return [line for line in text.replace("\r\n", "\n").split("\n") if line]


def _read_any(text: str) -> Any:
    """Return the value of a param without a schema: JSON if it is, else the text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _read_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as exc:
        raise ValueError(f"{text[:60]!r} is not JSON: {exc}") from exc


def _read_object(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    found = _read_json(text)
    if not isinstance(found, dict):
        raise ValueError(f'The conf must be a JSON object, such as {{"n": 4}}, not {text[:60]!r}.')  # noqa: TRY004
    return found


def _read_local(text: str, zone: tzinfo) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ValueError(f"{text[:60]!r} is not a date and time.") from exc
    return found.replace(tzinfo=zone) if found.tzinfo is None else found


def _read_instant(text: str, zone: ZoneInfo) -> datetime | None:
    try:
        return _read_local(text, zone).astimezone(UTC) if text else None
    except OverflowError as exc:
        raise ValueError(f"{text[:60]!r} is outside of the calendar.") from exc


def _others(dag: SerializedDag, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in dag.params}


def as_text(value: Any) -> str:
    """Return the JSON of a value, on one line; empty for an empty object."""
    return "" if value == {} else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
