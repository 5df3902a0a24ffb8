"""Endpoints: an async function whose arguments are those of the request, by their names and types.

A parameter named in the path comes from there, `body` is the JSON of the request, `call` is the request itself, and
every other one comes from the query string; a list takes each of its values, and a struct stands for its fields. The
types check the values, and make the OpenAPI document (`openapi.py`), so neither is written twice.
"""

import functools
import inspect
import operator
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints
from urllib.parse import parse_qs

import msgspec
from msgspec import UNSET, Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from asynsched.client.operation import IN_PATH
from asynsched.queries.context import QueryContext
from asynsched.web.access import Access, Identity, NotAllowed, Permission
from asynsched.web.streams import Streams

MOST_BODY_BYTES = 4 * 1024**2
"""Of a request."""
DAY = re.compile(r"\d{4}-\d\d-\d\d")
JSON = "application/json"


class Call(NamedTuple):
    """A request, who makes it, and where it is answered.

    Attributes:
        access: Identifies them again, for an answer that takes long.
        streams: The answers without an end of their own.
    """

    request: Request
    who: Identity
    context: QueryContext
    access: Access
    streams: Streams


class Invalid(Exception):
    """A value of a request is wrong.

    Attributes:
        location: Where, such as `("query", "limit")`.
    """

    def __init__(self, location: tuple[str, ...], problem: str) -> None:
        super().__init__(problem)
        self.location = location
        self.problem = problem


class TooLarge(Exception):
    """The body of a request is too large. The text, for people, names the limit in bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The request is too large: its body may have {most:,} bytes at most.")


class Parameter(NamedTuple):
    """A value of a path or a query string.

    Attributes:
        part_of: The argument that it is a field of, if that is a struct.
    """

    name: str
    kind: Any
    default: Any
    is_in_path: bool
    part_of: str | None = None

    @property
    def is_list(self) -> bool:
        """Whether the query string may name it several times."""
        kinds = (self.kind, *get_args(self.kind))
        return any(get_origin(kind) in (list, tuple, frozenset) for kind in kinds)

    @property
    def is_instant(self) -> bool:
        """Whether it is an instant, for which a day may stand: its beginning."""
        return datetime in (self.kind, *get_args(self.kind))


class Example(Struct, frozen=True):
    """A request of an endpoint and its answer, for the OpenAPI document.

    Attributes:
        arguments: Those in the path and the query string by name, and `body`.
        answer: As JSON has it; UNSET: none is shown.
    """

    arguments: Mapping[str, Any] = {}
    answer: Any = UNSET


class Endpoint(Struct, frozen=True):
    """One method of one path.

    Attributes:
        name: That no other endpoint of its API has.
        function: Answers: with a value, which is sent as JSON, or a Response of Starlette.
        permission: What the user must be allowed; for the DAG, if the path names one.
        status: Of a good answer.
        errors: Other statuses that are answered.
        other_answer: The type of what it answers in some cases, with the same status, as a Response.
    """

    method: str
    path: str
    name: str
    function: Callable[..., Awaitable[Any]]
    permission: Permission
    status: int
    errors: tuple[int, ...]
    example: Example = Example()
    other_answer: type[Struct] | None = None

    @property
    def types(self) -> dict[str, Any]:
        """The types of its arguments, and of its answer as `return`; the same objects each time."""
        return _types_of(self.function)

    @property
    def structs(self) -> dict[str, type[Struct]]:
        """The arguments whose fields are in its query string, by name."""
        return {name: kind for name, kind in self.types.items() if name not in NOT_IN_QUERY and _is_struct(kind)}

    @property
    def parameters(self) -> list[Parameter]:
        """The values in its path and its query string."""
        types, in_path, found = self.types, set(IN_PATH.findall(self.path)), []
        for name, one in inspect.signature(self.function).parameters.items():
            if _is_struct(types[name]) and name not in NOT_IN_QUERY:
                found += _fields_of(name, types[name])
            elif name not in NOT_IN_QUERY:
                found.append(Parameter(name, types[name], one.default, name in in_path))
        return found


NOT_IN_QUERY = ("call", "body", "return")


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


@cache
def _fields_of(argument: str, kind: type[Struct]) -> list[Parameter]:
    required = inspect.Parameter.empty
    return [
        Parameter(
            one.name, one.type, required if one.default is msgspec.NODEFAULT else one.default, False, part_of=argument
        )
        for one in msgspec.structs.fields(kind)
    ]


@cache
def _types_of(function: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    types = get_type_hints(function, include_extras=True)
    if isinstance(types.get("return"), UnionType):
        # An answer may have other forms beside JSON.
        kinds = [
            kind for kind in get_args(types["return"]) if not (isinstance(kind, type) and issubclass(kind, Response))
        ]
        types["return"] = functools.reduce(operator.or_, kinds)
    return types


class Find(Protocol):
    """Returns the call of a request."""

    async def __call__(self, request: Request, permission: Permission = Permission.VIEW) -> Call:
        """Raise NotSignedIn if nobody is signed in, unless nothing is needed."""
        ...


class Api:
    """Endpoints below one path, described by one document.

    Args:
        title: Of the document.
        version: Of the API.
        is_strict: Whether a name in a query string that an endpoint does not know is an error.
        has_forms: Whether its query strings come from forms, which send each field that was left empty.
    """

    def __init__(self, title: str, version: str, *, is_strict: bool = False, has_forms: bool = False) -> None:
        self.title = title
        self.version = version
        self.is_strict = is_strict
        self.has_forms = has_forms
        self.endpoints: list[Endpoint] = []

    def endpoint(
        self,
        method: str,
        path: str,
        *,
        permission: Permission = Permission.VIEW,
        status: int = 200,
        errors: tuple[int, ...] = (),
        example: Example = Example(),  # noqa: B008  # it is frozen
        name: str | None = None,
        other_answer: type[Struct] | None = None,
    ) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
        """Return a decorator that makes a function an endpoint; `name`: by default that of the function."""

        def add(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            one = Endpoint(
                method, path, name or function.__name__, function, permission, status, errors, example,
                other_answer,
            )  # fmt: skip
            self.endpoints.append(one)
            return function

        return add

    def routes(self, find: Find) -> list[Route]:
        """Return the routes of all endpoints; literal paths first, as a name in a path takes anything.

        A name that takes slashes as well comes last where it ends the path.
        """

        def rank(one: Endpoint) -> tuple[bool, list[bool]]:
            return one.path.endswith(":path}"), [part.startswith("{") for part in one.path.split("/")]

        ordered = sorted(self.endpoints, key=rank)
        return [Route(one.path, _answering(one, find, self), methods=[one.method]) for one in ordered]


def _answering(endpoint: Endpoint, find: Find, api: Api) -> Callable[[Request], Awaitable[Response]]:
    parameters, types, structs = endpoint.parameters, endpoint.types, endpoint.structs
    known = [one.name for one in parameters if not one.is_in_path] if api.is_strict else None

    async def answer(request: Request) -> Response:
        call = await find(request, endpoint.permission)
        check(call.who, endpoint.permission, request.path_params.get("dag_id"))
        if known is not None:
            _refuse_unknown(request, known)
        arguments = _arguments(parameters, structs, request, has_forms=api.has_forms)
        if "body" in types:
            arguments["body"] = await read_body(request, types["body"])
        if "call" in types:
            arguments["call"] = call
        response = as_response(await endpoint.function(**arguments), endpoint.status)
        return call.streams.supervised(call, response) if isinstance(response, StreamingResponse) else response

    return answer


def check(who: Identity, permission: Permission, dag_id: str | None) -> None:
    """Raise NotAllowed unless this is allowed. `~` stands for all DAGs."""
    if not who.may(permission, None if dag_id == "~" else dag_id):
        raise NotAllowed(f"{who.name} may not do this: it needs the right to {permission.name.lower()}.")


def as_response(answer: Any, status: int = 200) -> Response:
    """Return the response for an answer: its JSON, unless it is a Response."""
    if isinstance(answer, Response):
        return answer
    if status == 204:
        return Response(status_code=status)
    return Response(msgspec.json.encode(answer), status, media_type=JSON)


def _arguments(
    parameters: Sequence[Parameter], structs: Mapping[str, type[Struct]], request: Request, *, has_forms: bool
) -> dict[str, Any]:
    """Return the arguments in a path and a query string. Raises Invalid."""
    given: dict[str | None, dict[str, Any]] = {None: {}, **{name: {} for name in structs}}
    for one in parameters:
        if (value := _value(one, request, has_forms=has_forms)) is not UNSET:
            given[one.part_of][one.name] = value
    return {**given[None], **{name: kind(**given[name]) for name, kind in structs.items()}}


def _refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Raise Invalid for a name in the query string that is not known: a misspelt filter would have no effect."""
    for name in request.query_params:
        if name not in known:
            possible = f"The known ones are {', '.join(known)}." if known else "This request has none."
            raise Invalid(("query", name[:100]), f"There is no parameter {name[:100]!r}. {possible}")


def _value(parameter: Parameter, request: Request, *, has_forms: bool) -> Any:
    """Return the value of an argument; UNSET if the request has none. Raises Invalid."""
    where = "path" if parameter.is_in_path else "query"
    if parameter.is_in_path:
        given: Any = request.path_params[parameter.name]
    elif parameter.name not in request.query_params:
        if parameter.default is inspect.Parameter.empty:
            raise Invalid((where, parameter.name), "Field required")
        return UNSET
    else:
        given = (
            request.query_params.getlist(parameter.name) if parameter.is_list else request.query_params[parameter.name]
        )
    if parameter.is_instant and DAY.fullmatch(given):
        given = f"{given}T00:00:00"
    try:
        return msgspec.convert(given, parameter.kind, strict=False)
    except msgspec.ValidationError as exc:
        if has_forms and given == "" and parameter.default is not inspect.Parameter.empty:
            return UNSET
        raise Invalid((where, parameter.name), _with_choices(str(exc), parameter.kind)) from exc


async def read_bytes(
    request: Request, most: int = MOST_BODY_BYTES, *, check: Callable[[bytes], Awaitable[object]] | None = None,
    unchecked: int = 0,
) -> bytes:  # fmt: skip
    """Return the body of a request, of `most` bytes.

    Args:
        check: Called once with the beginning of a body of more than `unchecked` bytes; what it raises ends the reading.

    Raises:
        TooLarge: There are more bytes.
    """
    parts, n_bytes = [], 0
    async for part in request.stream():
        n_bytes += len(part)
        if n_bytes > most:
            raise TooLarge(most)
        parts.append(part)
        if check is not None and n_bytes > unchecked:
            await check(b"".join(parts))
            check = None
    return b"".join(parts)


async def read_form(request: Request, *, most_bytes: int, most_fields: int) -> dict[str, list[str]]:
    """Return the fields of a form, each with its values. Raises TooLarge, and Invalid."""
    body = (await read_bytes(request, most_bytes)).decode("utf-8", "replace")
    try:
        return parse_qs(body, keep_blank_values=True, max_num_fields=most_fields)
    except ValueError as exc:
        raise Invalid(("body",), f"A form has {most_fields} fields at most.") from exc


async def read_body(request: Request, kind: Any, most: int = MOST_BODY_BYTES) -> Any:
    """Return the JSON of a request, of `most` bytes, as a value of a type. Raises Invalid, and TooLarge."""
    return decode_body(await read_bytes(request, most), kind)


def decode_body(body: bytes, kind: Any) -> Any:
    """Return the JSON of a request, as a value of a type. Raises Invalid."""
    try:
        return msgspec.json.decode(body or b"null", type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise Invalid(("body",), _with_choices(str(exc), kind)) from exc


WRONG_CHOICE = re.compile(r"Invalid enum value .*?(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
"""How msgspec begins its message about a value that is none of some names, and where that is."""


def _with_choices(problem: str, kind: Any) -> str:
    """Return the message of a wrong value; if it should be one of some names, with these."""
    found = WRONG_CHOICE.fullmatch(problem)
    names = [] if found is None else _choices(kind, re.findall(r"\.(\w+)", found["path"] or ""))
    return f"{problem}. Choose among {', '.join(names)}." if names else problem


def _choices(kind: Any, path: Sequence[str]) -> list[str]:
    """Return the names that a value may be, at a path of fields within a type."""
    if _is_struct(kind):
        fields = {one.encode_name: one.type for one in msgspec.structs.fields(kind)}
        return _choices(fields[path[0]], path[1:]) if path and path[0] in fields else []
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [] if path else [str(one.value) for one in kind]
    if get_origin(kind) is Literal:
        return [] if path else [str(one) for one in get_args(kind)]
    return [name for part in get_args(kind) for name in _choices(part, path)]
