"""Our REST API, made from the operations of `Client`: each endpoint calls the method for its user.

Beside them there is the stream of events.
"""

import inspect
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.responses import Response

from asynsched.client.client import LocalClient
from asynsched.client.operation import OPERATIONS, Operation
from asynsched.web.access import Permission
from asynsched.web.endpoint import JSON, Api, Call, Example
from asynsched.web.event_stream import add_events

VERSION = "1"


def make_own_api() -> Api:
    """Return the API of all operations."""
    api = Api("asynsched", VERSION, is_strict=True)
    for operation in OPERATIONS.values():
        add = api.endpoint(
            operation.method, operation.path, permission=operation.permission, status=operation.status,
            errors=(400, 404, 409, 503), example=_example_of(operation),
        )  # fmt: skip
        add(_endpoint_of(operation))
    add_events(api)
    return api


def _example_of(operation: Operation) -> Example:
    given = dict(operation.arguments)
    if operation.body is not None:
        names = given.keys() - operation.in_path
        given["body"] = {name: given.pop(name) for name in sorted(names)}
    return Example(given, operation.answer)


def _endpoint_of(operation: Operation) -> Any:
    """Return the function that answers the request of an operation, with the signature that describes it."""

    async def answer(call: Call, body: msgspec.Struct | None = None, **given: Any) -> Any:
        if body is not None:
            given |= {name: getattr(body, name) for name in body.__struct_fields__}
        who = call.who
        operated = who.dags_for(Permission.OPERATE)
        client = LocalClient(lambda: call.context, who.name, who.dag_ids, who.issuer, operated)
        result = operation.encoded(await operation.function(client, **operation.taken(given)))
        if not operation.is_large:
            return result
        return Response(await run_sync(msgspec.json.encode, result), operation.status, media_type=JSON)

    body, fields = operation.body, operation.fields
    in_body = set() if body is None else fields.keys() - operation.in_path
    arguments = {name: one for name, one in fields.items() if name not in in_body}
    types = {"call": Call, **{name: kind for name, (kind, _) in arguments.items()}}
    if body is not None:
        types["body"] = body
    defaults = {name: default for name, (_, default) in arguments.items()}
    answer.__name__ = operation.name
    answer.__doc__ = inspect.cleandoc(operation.function.__doc__ or "").partition("\n\nArgs:")[0]
    answer.__annotations__ = {**types, "return": operation.result}
    answer.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by `inspect.signature`
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, inspect.Parameter.empty))
            for name in types
        ]
    )
    return answer


OWN_API = make_own_api()
