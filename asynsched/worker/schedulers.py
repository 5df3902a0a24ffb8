"""Messages to the schedulers of a database: any of them answers, so a worker asks on until one does."""

import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

import anyio
import httpx
import msgspec
from msgspec import Struct

from asynsched.clock import Clock, jitter
from asynsched.errors import ERROR_HEADER, AsynschedError, SettingsError
from asynsched.loggers import get_logger
from asynsched.protocol.frames import UNDECODABLE
from asynsched.protocol.worker_messages import PREFIX, LogSize, Ticket

log = get_logger(__name__)

T = TypeVar("T")
TIMEOUT = httpx.Timeout(10.0, connect=5.0)
PATIENT = httpx.Timeout(60.0, connect=5.0)
"""For requests of tries, which may wait for the database: longer than the 50 s (40 s, and 10 s for a commit) within
which a scheduler carries one out or gives it up. Otherwise it could carry one out after later ones of the same try."""
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
"""Connections have no limit: a renewal must not wait for requests of tries, which may wait for the database."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=5)
FINAL_ERRORS = frozenset({"NotFound", "TicketRefused"})
"""Names of errors by which a scheduler refuses a ticket. A proxy, or another program at that address, names none."""
UNANSWERABLE = frozenset({"DataFilesUnavailable"})
"""Names of errors that asking again does not end, until somebody changes a setting or a file."""
FINAL_STATUSES = frozenset({413, 422})
"""A message that every scheduler refuses."""
CERTIFICATES = "SSL_CERT_FILE"
"""Environment variable of OpenSSL: a PEM file with the authorities that are trusted instead of the usual ones."""
UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})
"""Results of OpenSSL's verification (X509_V_ERR): the chain of a certificate ends at nobody who is trusted."""


class Refused(AsynschedError):
    """The schedulers refuse a message for good.

    Attributes:
        is_over: Whether its ticket is not valid, or not any more; otherwise the message itself is wrong.
    """

    def __init__(self, message: str, *, is_over: bool) -> None:
        super().__init__(message)
        self.is_over = is_over


class Unreachable(AsynschedError):
    """No scheduler has answered."""


class Schedulers:
    """The schedulers that tickets name. Of each database, the address that has answered last is asked first.

    Raises:
        SettingsError: The file that SSL_CERT_FILE names cannot be used.
    """

    def __init__(self, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._clock = clock
        try:
            self._http = httpx.AsyncClient(timeout=TIMEOUT, transport=transport, limits=LIMITS)
        except OSError as exc:
            file = os.environ.get(CERTIFICATES, "")
            raise SettingsError(f"{CERTIFICATES}: {file!r} must be a PEM file with certificates: {exc}") from exc
        self._good: dict[frozenset[str], str] = {}
        """By the addresses, in whichever order a ticket has them."""

    async def close(self) -> None:
        await self._http.aclose()

    async def send(
        self, addresses: Sequence[str], path: str, message: Struct, answer: type[T], patience: httpx.Timeout = TIMEOUT
    ) -> T:
        """Send a message to each address until a scheduler answers. Raises Refused, and Unreachable if none does."""
        decode = partial(msgspec.json.decode, type=answer)
        return await self._post(addresses, path, decode, content=msgspec.json.encode(message), timeout=patience)

    async def send_log(self, ticket: Ticket, start: int, data: bytes) -> int:
        """Send a part of a log, and return how many bytes are stored. Raises Refused, and Unreachable."""
        decode = partial(msgspec.json.decode, type=LogSize)
        at = {"token": ticket.token, "start": start}
        stored: LogSize = await self._post(
            ticket.addresses, "/log", decode, content=data, headers=_secret_of(ticket), params=at
        )  # fmt: skip
        return stored.n_bytes

    async def fetch_file(self, ticket: Ticket, path: str, start: int) -> bytes:
        """Return a part of a data file; empty at its end. Raises Refused, and Unreachable."""
        at = {"token": ticket.token, "path": path, "start": start}
        return await self._post(
            ticket.addresses, "/file", bytes, headers=_secret_of(ticket), params=at, timeout=PATIENT
        )  # fmt: skip

    async def insist(self, send: Callable[[], Awaitable[T]], giving_up: anyio.Event | None = None) -> T:
        """Call a function that sends a message until a scheduler answers.

        Args:
            giving_up: Once it is set, the message is sent one more time at most.

        Raises:
            Refused: The schedulers refuse the message for good.
            Unreachable: No scheduler has answered until it was given up.
        """
        pause, giving_up = FIRST_PAUSE, giving_up or anyio.Event()
        for attempt in count():
            is_last = giving_up.is_set()
            try:
                return await send()
            except Unreachable as exc:
                if is_last:
                    raise
                if attempt == 0:
                    log.warning("schedulers.unreachable", error=str(exc))
            await self._clock.wait(giving_up, pause + jitter(pause))
            pause = min(2 * pause, LONGEST_PAUSE)
        raise AssertionError

    async def _post(
        self, addresses: Sequence[str], path: str, decode: Callable[[bytes], T], **request: Any
    ) -> T:  # fmt: skip
        problems, good = [], self._good.get(frozenset(addresses))
        for address in sorted(addresses, key=lambda one: one != good):
            try:
                response = await self._http.post(f"{address.rstrip('/')}{PREFIX}{path}", **request)
                response.raise_for_status()
                decoded = decode(response.content)
            except (httpx.RequestError, httpx.InvalidURL) as exc:
                problems.append(_problem_at(address, exc))
            except httpx.HTTPStatusError:
                error = response.headers.get(ERROR_HEADER)
                is_over = error in FINAL_ERRORS
                if is_over or error in UNANSWERABLE or response.status_code in FINAL_STATUSES:
                    raise Refused(_detail_of(response), is_over=is_over) from None
                problems.append(f"{address} answers {response.status_code}: {_detail_of(response)}")
            except UNDECODABLE as exc:
                problems.append(f"{address} gives an answer of another version: {exc}")
            else:
                self._good[frozenset(addresses)] = address
                return decoded
        raise Unreachable("; ".join(problems) or "the ticket names no address")


def _secret_of(ticket: Ticket) -> dict[str, str]:
    return {"Authorization": f"Bearer {ticket.secret}"}


def _problem_at(address: str, error: Exception) -> str:
    """Return why an address could not be asked, and what to do if its certificate is the reason."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return f"{address}: {error or type(error).__name__}"
    if cause.verify_code not in UNKNOWN_AUTHORITY:
        return f"{address} shows a certificate that is not valid: {cause.verify_message}"
    return (
        f"{address} shows a certificate of an authority that this worker does not trust ({cause.verify_message}): set"
        f" {CERTIFICATES} in its environment to a PEM file with that authority's certificate, and start it again"
    )


def _detail_of(response: httpx.Response) -> str:
    """Return the error in an answer, for people."""
    try:
        detail = response.json()["detail"]
    except (ValueError, LookupError, TypeError):
        detail = response.text
    return str(detail)[:500]
