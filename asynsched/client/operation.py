"""Operations: the methods of `Client`, each of which is also a request of the REST API.

A method is declared once, with its request; its signature and types are those of the request:

- an argument whose name is in the path comes from there, as do the fields of a key (a named tuple);
- all others are in the query string or, unless the method is GET or DELETE, in the body, one JSON object;
- the result is the JSON of the answer.

The application makes routes and a document from this (`web/own_api.py`), and `remote.py` makes requests.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import cache, cached_property, wraps
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import UNSET, Meta, Struct

from asynsched.authoring.json_values import check_json
from asynsched.errors import DagError
from asynsched.keys import key_of
from asynsched.queries.paging import BadRequest
from asynsched.queries.permissions import Permission

if TYPE_CHECKING:
    from asynsched.client.client import Client

PREFIX = "/api/asynsched/v1"
"""Where an application has this API."""
P = ParamSpec("P")
T = TypeVar("T")
Several = list[T] | tuple[T, ...]
"""The type of an argument that takes several values. The method gets them as a tuple."""
Instant = Annotated[datetime, Meta(tz=True)]
ARGUMENT = re.compile(r" {4}(\w+): (.*)")
PATH_EXAMPLES: Mapping[str, Any] = {
    "dag_id": "etl", "run_id": "first", "task_id": "load", "map_index": -1, "key": "return_value", "number": 0,
    "backfill_id": 3, "asset_id": 7, "name": "ada", "conn_id": "shop", "session_id": 5, "token_id": 8,
}  # fmt: skip
"""Of what is named in paths, for the document."""
IN_PATH = re.compile(r"{(\w+)(?::\w+)?}")


class Operation:
    """One method of the client, and its request.

    Args:
        request: The method and the path, such as `GET /dags/{dag_id}`.
        function: The method: answers here.
        permission: What a user needs, for the DAG that the path names or in general.
        status: Of a good answer.
        arguments: An example; what it does not name of the path is in PATH_EXAMPLES.
        answer: An example of what it returns, as JSON values.
        is_large: Whether the answer may have thousands of parts, or megabytes: it is encoded and decoded in a thread.
    """

    def __init__(
        self,
        request: str,
        function: Callable[..., Awaitable[Any]],
        *,
        permission: Permission,
        status: int,
        arguments: Mapping[str, Any],
        answer: Any,
        is_large: bool,
    ) -> None:
        self.method, self.path = request.split(" ")
        self.function = function
        self.name = function.__name__
        self.permission = permission
        self.status = status
        self.arguments = {name: PATH_EXAMPLES[name] for name in IN_PATH.findall(self.path)} | dict(arguments)
        self.answer = answer
        self.is_large = is_large

    @cached_property
    def signature(self) -> inspect.Signature:
        """Its arguments, without `self`."""
        whole = inspect.signature(self.function)
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    @cached_property
    def types(self) -> dict[str, Any]:
        """The types of its arguments, as the method gets them, and of its result as `return`."""
        return {name: _got(kind) for name, kind in get_type_hints(self.function, include_extras=True).items()}

    @cached_property
    def keys(self) -> dict[str, Any]:
        """The arguments that are keys, whose fields are arguments of the request."""
        return {name: self.types[name] for name in self.signature.parameters if is_key(self.types[name])}

    @cached_property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """The type and the default of each argument of the request; without a default, `Parameter.empty`."""
        found: dict[str, tuple[Any, Any]] = {}
        for name, one in self.signature.parameters.items():
            if name in self.keys:
                kind, defaults = self.keys[name], self.keys[name]._field_defaults
                hints = get_type_hints(kind)
                found |= {field: (hints[field], defaults.get(field, inspect.Parameter.empty)) for field in kind._fields}
            else:
                found[name] = (self._described(name), one.default)
        return found

    def _described(self, name: str) -> Any:
        """Return the type of an argument, with what the docstring says about it."""
        about = arguments_in_words(self.function.__doc__ or "").get(name)
        return Annotated[self.types[name], Meta(description=about)] if about else self.types[name]

    @cached_property
    def in_path(self) -> frozenset[str]:
        """The arguments of the request that are in its path."""
        return frozenset(IN_PATH.findall(self.path))

    @cached_property
    def body(self) -> type[Struct] | None:
        """The struct of the body; None: all arguments are in the path and the query string."""
        names = [name for name in self.fields if name not in self.in_path]
        if self.method in ("GET", "DELETE") or not names:
            return None
        fields: list[Any] = []
        for name in names:
            kind, default = self.fields[name]
            fields.append((name, kind) if default is inspect.Parameter.empty else (name, kind, default))
        title = "".join(part.title() for part in self.name.split("_"))
        return msgspec.defstruct(f"{title}Body", fields, kw_only=True, frozen=True, forbid_unknown_fields=True)

    @cached_property
    def result(self) -> Any:
        """The type of the answer: that of the result, but an object for a key."""
        kind = self.types["return"]
        return key_struct(kind) if is_key(kind) else kind

    def bound(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call by name.

        A plain tuple or a result becomes the key that it stands for, and a date of a library such as pendulum a plain
        one.
        """
        given = self.signature.bind(*args, **kwargs).arguments
        return {
            name: key_of(self.keys[name], value) if name in self.keys else _plain(value)
            for name, value in given.items()
        }

    def checked(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call by name, as the values that a request would mean.

        Raises BadRequest, and the error of `check_values`.
        """
        bound = self.bound(*args, **kwargs)
        self.check_values(bound)
        return {name: self._checked(name, value) for name, value in bound.items()}

    def _checked(self, name: str, value: Any) -> Any:
        kind = self.types[name]
        if value is self.signature.parameters[name].default or kind is Any:
            return value
        if name in self.of_json:
            if not isinstance(value, Mapping):
                raise BadRequest(f"{name}: Expected an object, got {type(value).__name__}")
            return value
        if name in self.keys:
            fields = zip(value, (self.fields[field][0] for field in kind._fields), strict=True)
            return kind(*(self._converted(name, one, of_field) for one, of_field in fields))
        if get_origin(kind) is tuple:
            # As a query string has a list of one.
            is_one = isinstance(value, str) and self.body is None
            is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes)
            value = (value,) if is_one else tuple(value) if is_list else value
        found = self._converted(name, value, kind)
        if isinstance(found, datetime) and found.utcoffset() is None:
            raise BadRequest(f"{name}: {found.isoformat()} has no timezone")
        return found

    def _converted(self, name: str, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind, strict=self.body is not None)
        except msgspec.ValidationError as exc:
            raise BadRequest(f"{name}: {exc}") from exc

    @cached_property
    def of_json(self) -> frozenset[str]:
        """The arguments that may be any JSON, or any object."""
        return frozenset(name for name in self.signature.parameters if _is_of_json(self.types[name]))

    def check_values(self, given: Mapping[str, Any]) -> None:
        """Raise DagError for a value that is not JSON. To encode it would change it without a word."""
        for name in self.of_json.intersection(given):
            try:
                check_json(given[name], name)
            except TypeError as exc:
                raise DagError(str(exc)) from exc

    def given(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call as those of the request, without those that were left out."""
        found: dict[str, Any] = {}
        for name, value in self.bound(*args, **kwargs).items():
            found |= value._asdict() if name in self.keys else {name: value}
        return found

    def taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a request as those of the method."""
        found = dict(given)
        for name, kind in self.keys.items():
            found[name] = kind(**{field: found.pop(field) for field in kind._fields if field in found})
        return found

    def encoded(self, result: Any) -> Any:
        """Return a result as its JSON is to be made from."""
        return self.result(*result) if is_key(self.types["return"]) else result

    def decoded(self, content: bytes) -> Any:
        """Return the result that an answer holds. Raises msgspec.DecodeError."""
        if self.types["return"] is type(None):
            return None
        found = msgspec.json.decode(content, type=self.result)
        kind = self.types["return"]
        return kind(*msgspec.structs.astuple(found)) if is_key(kind) else found


OPERATIONS: dict[str, Operation] = {}
"""All operations, by name."""

Method = Callable[Concatenate["Client", P], Awaitable[T]]


def operation(
    request: str,
    *,
    permission: Permission = Permission.VIEW,
    status: int = 200,
    arguments: Mapping[str, Any] | None = None,
    answer: Any = UNSET,
    is_large: bool = False,
) -> Callable[[Method[P, T]], Callable[Concatenate["Client", P], Coroutine[Any, Any, T]]]:
    """Return a decorator that makes a method of the client an operation; see Operation for the arguments."""

    def make(function: Method[P, T]) -> Callable[Concatenate["Client", P], Coroutine[Any, Any, T]]:
        made = Operation(
            request, function, permission=permission, status=status, arguments=arguments or {}, answer=answer,
            is_large=is_large,
        )  # fmt: skip
        OPERATIONS[made.name] = made

        @wraps(function)
        async def call(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
            result: T
            if client.remote is None:
                result = await made.function(client, **made.checked(*args, **kwargs))
            else:
                given = made.given(*args, **kwargs)
                made.check_values(given)
                result = await client.remote.ask(made, given)
            return result

        return call

    return make


def arguments_in_words(docstring: str, section_name: str = "Args") -> dict[str, str]:
    """Return the text about each argument in the section `Args` of a docstring, or about each name in another one."""
    _, _, section = inspect.cleandoc(docstring).partition(f"\n{section_name}:\n")
    found: dict[str, str] = {}
    for line in section.partition("\n\n")[0].splitlines():
        if match := ARGUMENT.match(line):
            name, found[match[1]] = match[1], match[2]
        elif found:
            found[name] += f" {line.strip()}"
    return found


def _plain(value: Any) -> Any:
    is_date = isinstance(value, datetime) and type(value) is not datetime
    return datetime.combine(value.date(), value.timetz()) if is_date else value


def _is_of_json(kind: Any) -> bool:
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return Any in parts or any(Any in get_args(part) for part in parts)


def _got(kind: Any) -> Any:
    """Return the type of an argument as a method gets it: of `AnyRun` and `AnyTask` a key, of `Several` a tuple."""
    if key := next((one for one in getattr(kind, "__metadata__", ()) if is_key(one)), None):
        return key
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    if any(get_origin(part) is tuple for part in parts):
        return Union[tuple(part for part in parts if get_origin(part) is not list)]  # noqa: UP007 - made of a tuple
    return kind


def is_key(kind: Any) -> bool:
    """Whether a type is that of a key: a named tuple."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


@cache
def key_struct(kind: Any) -> type[Struct]:
    """Return a struct with the fields of a key, which is an object in JSON."""
    fields: list[Any] = [
        (name, hint, kind._field_defaults[name]) if name in kind._field_defaults else (name, hint)
        for name, hint in get_type_hints(kind).items()
    ]
    return msgspec.defstruct(kind.__name__, fields, frozen=True)
