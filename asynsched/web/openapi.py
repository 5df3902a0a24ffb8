"""The OpenAPI document of an API, made from the types of its endpoints."""

import inspect
from collections.abc import Collection, Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import msgspec.inspect
from msgspec import UNSET
from starlette.responses import Response

from asynsched.client.operation import IN_PATH, arguments_in_words
from asynsched.web.access import Permission
from asynsched.web.endpoint import JSON, Api, Endpoint, Example, Parameter

OPENAPI = "3.1.0"
TEMPLATE = "#/components/schemas/{name}"


def document(api: Api, prefix: str) -> dict[str, Any]:
    """Return the document of an API whose paths begin with a prefix."""
    endpoints = api.endpoints
    types = list(_types_of(endpoints))
    schemas, components = msgspec.json.schema_components(types, ref_template=TEMPLATE)
    instants = _instants_of(types)
    for name, schema in components.items():
        _describe_fields(schema, instants.get(name, frozenset()))
    of_types = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = prefix + IN_PATH.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, of_types, is_strict=api.is_strict)
    return {
        "openapi": OPENAPI,
        "info": {"title": api.title, "version": api.version},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _instants_of(types: Sequence[Any]) -> dict[str, frozenset[str]]:
    """Return the fields that are instants, by the structs within some types: msgspec's schemas say only `string`."""
    found: dict[str, frozenset[str]] = {}
    seen = set()  # Page[A] and Page[B] have one name
    left = list(msgspec.inspect.multi_type_info(types))
    while left:
        kind = left.pop()
        if not isinstance(kind, msgspec.inspect.StructType):
            left += _parts_of(kind)
        elif kind.cls not in seen:
            seen.add(kind.cls)
            found[kind.cls.__name__] = frozenset(one.encode_name for one in kind.fields if _is_instant(one.type))
            left += [one.type for one in kind.fields]
    return found


def _is_instant(kind: msgspec.inspect.Type) -> bool:
    return any(isinstance(one, msgspec.inspect.DateTimeType) for one in (kind, *_parts_of(kind)))


def _parts_of(kind: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    match kind:
        case msgspec.inspect.UnionType():
            return kind.types
        case msgspec.inspect.Metadata():
            return (kind.type,)
        case msgspec.inspect.CollectionType() | msgspec.inspect.VarTupleType():
            return (kind.item_type,)
        case msgspec.inspect.TupleType():
            return kind.item_types
        case msgspec.inspect.DictType():
            return (kind.key_type, kind.value_type)
        case _:
            return ()


def _describe_fields(schema: dict[str, Any], instants: Collection[str]) -> None:
    """Give each field of a struct what the section `Attributes` of its docstring says about it, and instants a format.

    Args:
        instants: The fields that are instants.
    """
    text = inspect.cleandoc(schema.get("description", ""))
    about = arguments_in_words(text, "Attributes")
    for name, field in schema.get("properties", {}).items():
        if name in about and "$ref" not in field:
            field.setdefault("description", about[name])
        for one in (field, *field.get("anyOf", ())) if name in instants else ():
            if one.get("type") == "string":
                one["format"] = "date-time"
    if text:
        schema["description"] = text.partition("\n\nAttributes:\n")[0]


def _types_of(endpoints: Iterable[Endpoint]) -> Iterable[Any]:
    for one in endpoints:
        types = one.types
        yield from (parameter.kind for parameter in one.parameters)
        yield from (types[name] for name in ("body", "return") if _has_schema(types.get(name)))
        if one.other_answer is not None:
            yield one.other_answer


def _has_schema(kind: Any) -> bool:
    return kind not in (None, type(None)) and not (isinstance(kind, type) and issubclass(kind, Response))


def _operation(one: Endpoint, of_types: dict[int, dict[str, Any]], *, is_strict: bool) -> dict[str, Any]:
    types = one.types
    summary, _, description = inspect.cleandoc(one.function.__doc__ or "").partition("\n")
    operation: dict[str, Any] = {
        "operationId": one.name,
        "summary": summary.rstrip("."),
        "parameters": [
            _parameter(parameter, of_types[id(parameter.kind)], one.example) for parameter in one.parameters
        ],
        "responses": {str(one.status): _response(one, of_types)},
    }
    if description.strip():
        operation["description"] = description.strip()
    if _has_schema(types.get("body")):
        content = _content(of_types[id(types["body"])], one.example.arguments.get("body", UNSET))
        operation["requestBody"] = {"required": True, "content": content}
    may_be_wrong = is_strict or bool(operation["parameters"]) or _has_schema(types.get("body"))
    for status in [*_usual_errors(one, may_be_wrong), *one.errors]:
        operation["responses"][str(status)] = {"description": HTTPStatus(status).phrase}
    return operation


def _content(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {JSON: {"schema": schema} if example is UNSET else {"schema": schema, "example": example}}


def _usual_errors(one: Endpoint, has_input: bool) -> list[HTTPStatus]:
    """Return the statuses of errors that many endpoints may answer with."""
    found = [HTTPStatus.SERVICE_UNAVAILABLE]
    if one.permission > Permission.NOTHING:
        found += [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN]
    if has_input:
        # 400 also stands for a text that no database can keep.
        found += [HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY]
    return found


def _parameter(parameter: Parameter, schema: dict[str, Any], example: Example) -> dict[str, Any]:
    schema = dict(schema)
    if parameter.default not in (inspect.Parameter.empty, None, UNSET, ()):
        schema["default"] = parameter.default
    described = {
        "name": parameter.name,
        "in": "path" if parameter.is_in_path else "query",
        "required": parameter.is_in_path or parameter.default is inspect.Parameter.empty,
        "schema": schema,
    }
    if parameter.name in example.arguments:
        described["example"] = example.arguments[parameter.name]
    return described


def _response(one: Endpoint, of_types: dict[int, dict[str, Any]]) -> dict[str, Any]:
    kind = one.types.get("return")
    described: dict[str, Any] = {"description": HTTPStatus(one.status).phrase}
    if _has_schema(kind) and one.status != HTTPStatus.NO_CONTENT:
        schema = of_types[id(kind)]
        if one.other_answer is not None:
            schema = {"anyOf": [schema, of_types[id(one.other_answer)]]}
        described["content"] = _content(schema, one.example.answer)
    return described
