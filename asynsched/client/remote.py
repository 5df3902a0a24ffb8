"""Operations by HTTP: requests to the REST API of an asynsched elsewhere. Needs the package httpx."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from anyio.to_thread import run_sync

from asynsched import errors
from asynsched.client.operation import IN_PATH, PREFIX, Operation
from asynsched.clock import Clock
from asynsched.errors import ERROR_HEADER, AsynschedError
from asynsched.queries.events import Change, Missed, NoEvents
from asynsched.queries.paging import BadRequest

TIMEOUT_SECONDS = 90.0
"""How long an answer is waited for: a simulation may take a minute."""
STREAM = httpx.Timeout(TIMEOUT_SECONDS)
"""A stream is not silent for that long while its connection is good."""
RECONNECT = timedelta(seconds=1)
STARTING = frozenset({502, 503, 504})
"""Statuses of an application that is starting, or of its proxy meanwhile."""
MOST_DETAIL = 2000
"""Characters of an answer that an error shows."""


class RemoteError(AsynschedError):
    """Another asynsched cannot be reached, or refuses a request.

    Attributes:
        status: Of the answer; None: there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Remote:
    """The REST API of an application.

    Args:
        url: Of the application, such as `https://example.com/asynsched`.
        token: A personal token; without one, or if it is empty, the application must be open.
        transport: Of httpx; by default the network.

    Raises:
        ValueError: The token has characters that no token has, such as a line feed of the file that it is from.
    """

    def __init__(self, url: str, token: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ValueError("token: it has a blank, a line feed or another character that no token has")
        headers = {} if not token else {"Authorization": f"Bearer {token}"}
        base = url.rstrip("/") + PREFIX
        self.clock = Clock()
        self._http = httpx.AsyncClient(base_url=base, headers=headers, timeout=TIMEOUT_SECONDS, transport=transport)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def ask(self, operation: Operation, given: Mapping[str, Any]) -> Any:
        """Send the request of an operation, and return its result.

        Args:
            given: The arguments of the request.

        Raises:
            AsynschedError: The error that the operation has raised there, with its message.
            RemoteError: The application cannot be reached, or does not allow this.
        """
        method, path, options = request_of(operation, given)
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.RequestError as exc:
            raise self._unreachable(exc) from exc
        if not answer.is_success:
            raise error_of(answer)
        try:
            if operation.is_large:
                return await run_sync(operation.decoded, answer.content)
            return operation.decoded(answer.content)
        except msgspec.DecodeError as exc:
            said = f"{_shown(answer.url)} gives an answer of another version: {exc}"
            raise RemoteError(said, answer.status_code) from exc

    async def events(
        self, since: int | None, dag_id: str | None, run_id: str | None
    ) -> AsyncGenerator[Change | Missed, None]:
        """Yield events; after a lost connection, or while the application starts again, go on after the last one.

        Raises the errors of `ask`.
        """
        given = {"since": since, "dag_id": dag_id, "run_id": run_id}
        params = {name: value for name, value in given.items() if value is not None}
        last = ""
        while True:
            headers = {"Last-Event-ID": last} if last else {}
            try:
                async with self._http.stream(
                    "GET", "/events", params=params, headers=headers, timeout=STREAM
                ) as answer:
                    if answer.is_success:
                        async for number, event in events_of(_lines(answer.aiter_bytes())):
                            last = number
                            if event is not None:
                                yield event
                    elif not (last and answer.status_code in STARTING):
                        await answer.aread()
                        raise error_of(answer)
            except httpx.TransportError as exc:
                if not last:
                    raise self._unreachable(exc) from exc
            await self.clock.sleep(RECONNECT)

    @staticmethod
    def is_away(error: AsynschedError) -> bool:
        """Return whether the application could not be reached, or was starting."""
        return isinstance(error, RemoteError) and (error.status is None or error.status in STARTING)

    def _unreachable(self, exc: Exception) -> RemoteError:
        return RemoteError(f"{_shown(self._http.base_url)} cannot be reached: {str(exc) or type(exc).__name__}")


def _shown(url: httpx.URL) -> str:
    """Return an address for people, without the user and password that it may have."""
    return str(url.copy_with(userinfo=b""))


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a stream. Only a line feed ends one, because texts may contain other separators."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Change | Missed | None]]:
    """Yield the events of a stream, each with its id; None for an id alone, after which the stream begins."""
    fields: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(":")
        if line and name:
            fields[name] = value.removeprefix(" ")
        elif not line and "data" in fields:
            kind: type[Change | Missed] = Missed if fields.get("event") == "missed" else Change
            yield fields["id"], msgspec.json.decode(fields["data"], type=kind)
        elif not line and "id" in fields:
            yield fields["id"], None
        if not line:
            fields = {}


def request_of(operation: Operation, given: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the method, the path and the options of httpx for an operation."""
    in_path = {name: given.get(name, operation.fields[name][1]) for name in operation.in_path}
    if dots := [name for name, value in in_path.items() if value in (".", "..")]:
        raise BadRequest(f"{dots[0]}: {in_path[dots[0]]!r} cannot be a part of an address.")
    path = IN_PATH.sub(lambda found: quote(_text(in_path[found[1]]), safe=""), operation.path)
    rest = {name: value for name, value in given.items() if name not in operation.in_path}
    if operation.body is not None:
        content = msgspec.json.encode(rest)
        return operation.method, path, {"content": content, "headers": {"Content-Type": "application/json"}}
    params = [pair for name in rest for pair in _in_query(name, rest[name], operation.fields[name][1])]
    return operation.method, path, {"params": params}


def _in_query(name: str, value: Any, default: Any) -> list[tuple[str, str]]:
    if value is None:
        return [] if default is None else [(name, "null")]
    values = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return [(name, _text(one)) for one in values]


def _text(value: Any) -> str:
    """Return a value as a path or a query string has it."""
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def error_of(answer: httpx.Response) -> AsynschedError:
    """Return the error that an answer reports."""
    try:
        detail = msgspec.json.decode(answer.content)["detail"]
    except (msgspec.DecodeError, KeyError, TypeError):
        detail = answer.text[:MOST_DETAIL] or answer.reason_phrase
    if answer.is_redirect:
        location = answer.headers.get("Location", "")
        detail = f"it redirects to {_shown(httpx.URL(location))}" if location else "it redirects elsewhere"
    message = "; ".join(map(_sentence, detail)) if isinstance(detail, list) else str(detail)
    known = {"BadRequest": BadRequest, "NoEvents": NoEvents, **vars(errors)}
    kind = known.get(answer.headers.get(ERROR_HEADER, ""))
    if isinstance(kind, type) and issubclass(kind, AsynschedError):
        return kind.__new__(kind, message)  # its own arguments are in the message
    if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        return BadRequest(message)
    return RemoteError(f"{_shown(answer.url)}: {message}", answer.status_code)


def _sentence(problem: Any) -> str:
    if not isinstance(problem, dict):
        return str(problem)
    where = " ".join(str(part) for part in problem.get("loc", ()))
    return f"{where}: {problem.get('msg', '')}"
