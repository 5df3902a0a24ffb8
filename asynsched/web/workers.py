"""The requests of workers on other machines: claims, renewals, requests of tries, logs, starts and ends.

They are served beside the APIs by every process with a scheduler. Any of them answers for any try of the database: what
it stores, the scheduler that owns the try's run hears of. The secret of a ticket is the only right that is asked for,
and lasts exactly as long as the try.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from asynsched.airflow.installation import options_of_processes
from asynsched.bell import Hint
from asynsched.channels import TaskReady
from asynsched.errors import StoreUnavailable, TicketRefused
from asynsched.executors.base import TryEvent
from asynsched.executors.log_stores import LogStore
from asynsched.executors.requests import RequestAnswerer
from asynsched.executors.warm_workers import WarmWorkers
from asynsched.protocol.frames import MAX_FRAME_BYTES
from asynsched.protocol.messages import Ended, Launch, Reply
from asynsched.protocol.worker_messages import (
    MOST_LOG_BYTES,
    MOST_RENEWALS,
    Ask,
    Claim,
    Claimed,
    DataFileList,
    Following,
    LogSize,
    Proof,
    Renew,
    Renewed,
    Report,
    Ticket,
    WorkerTerms,
)
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.schedulers import notify
from asynsched.store.schema import TicketRow
from asynsched.store.tickets import CLAIMED, claim_ticket, find_ticket, renew_tickets, report_try
from asynsched.web.data_files import DataFiles
from asynsched.web.endpoint import Invalid, as_response, decode_body, read_bytes

T = TypeVar("T")
MOST_BYTES = MAX_FRAME_BYTES + 4096
"""Of a request: a frame of a try, and its proof."""
LONGEST_PROOF = 16 * 1024
"""Bytes of a message that has little more than a proof."""
LEADING_PROOF = re.compile(rb'\s*\{\s*"proof"\s*:\s*(\{[^{}]*\})')
ANSWER_SECONDS = 40.0
"""Longest that a request of a try waits for the database. Its worker waits for longer before it asks elsewhere: a write
that was carried out here after that could undo the try's later ones."""
ROOM_FOR_REMARKS = 1024 * 1024
"""Bytes that a log may have beyond its limit: the keeper's own lines."""


class WorkerDesk(Struct, frozen=True):
    """The parts of a scheduler that answer workers.

    Attributes:
        scheduler_id: Its own, which it is announced with what it stores, so that it does not hear of that twice.
        answerer: Answers the requests of tries.
        logs: Keeps the logs.
        tell: Tells this process's executor which starts and ends of tries are stored; without any, that it is to read
            the database.
        launch_of: Returns the launch of a try by its token; None: another scheduler has launched it.
        database: The scheduler's own: writes of workers and of the scheduler share commits.
        warm: Workers that wait for another ticket.
    """

    scheduler_id: str
    answerer: RequestAnswerer
    logs: LogStore
    tell: Callable[[tuple[TryEvent, ...]], None]
    launch_of: Callable[[str], Launch | None]
    database: Database
    warm: WarmWorkers


class WorkerApi:
    """Answers workers. One instance for a process."""

    def __init__(self, settings: Settings, desk: WorkerDesk) -> None:
        self._settings = settings
        self._desk = desk
        self._database = desk.database
        self._files = DataFiles(settings)
        self._terms: WorkerTerms | None = None

    @property
    def routes(self) -> list[Route]:
        """The routes below `PREFIX`."""
        return [
            _route("/claim", Claim, self._claim),
            _route("/renew", Renew, self._renew, most=MOST_RENEWALS * 1024),
            Route("/request", partial(self._answer_proven, Ask, self._request), methods=["POST"]),
            Route("/report", partial(self._answer_proven, Report, self._report), methods=["POST"]),
            _route("/next", Proof, self._next),
            _route("/files", Proof, self._list_files),
            Route("/file", self._file, methods=["POST"]),
            Route("/log", self._log, methods=["POST"]),
        ]

    async def _answer_proven(
        self, kind: type[T], function: Callable[[T], Awaitable[Any]], request: Request
    ) -> Response:
        """Answer a message that may be large."""
        body = await self._read(request, MOST_BYTES, _leading_proof)
        return as_response(await function(decode_body(body, kind)), HTTPStatus.OK)

    async def _read(self, request: Request, most: int, proof_in: Callable[[bytes], Proof]) -> bytes:
        """Return a body of `most` bytes. One that is long is read to its end only with a good proof.

        Args:
            proof_in: Returns the proof of a body that begins so.
        """

        async def check(beginning: bytes) -> None:
            await self._database.read_at_once(find_ticket, proof_in(beginning))

        return await read_bytes(request, most, check=check, unchecked=LONGEST_PROOF)

    async def _claim(self, claim: Claim) -> Claimed:
        launch = self._desk.launch_of(claim.proof.token)
        if launch is None:
            launch = _launch(await self._database.read_at_once(find_ticket, claim.proof))
        if (terms := self._terms) is None:
            terms = self._terms = await run_sync(_terms, self._settings)
        try:
            claimed = await self._store_claim(claim, terms, launch.log_path)
        except _OtherLog as exc:
            claimed = await self._store_claim(claim, terms, exc.path)
        self._desk.warm.note_claim(claim.proof.token)
        return claimed

    async def _store_claim(self, claim: Claim, terms: WorkerTerms, log_path: str) -> Claimed:
        log_start = await run_sync(self._desk.logs.size, log_path)
        return await self._database.write(_store_claim, claim, terms, log_path, log_start)

    async def _renew(self, renew: Renew) -> Renewed:
        if len(renew.proofs) > MOST_RENEWALS:
            raise Invalid(("body", "proofs"), f"at most {MOST_RENEWALS} in one message")
        seconds = self._settings.workers.lease
        return Renewed(tuple(await self._database.write(renew_tickets, renew.proofs, seconds)))

    async def _request(self, ask: Ask) -> Reply:
        if ask.request.token != ask.proof.token:
            raise Invalid(("body", "request"), "it is of another try")
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                found = await self._running(ask.proof)
                return await self._desk.answerer.answer(ask.request, TaskReady(found.dag_run_id, _launch(found)))
        except TimeoutError as exc:
            raise StoreUnavailable(f"The database has not answered within {ANSWER_SECONDS:g} s") from exc

    async def _report(self, report: Report) -> None:
        events: tuple[TryEvent, ...] = (report.event,) if report.started is None else (report.started, report.event)
        if any(event.token != report.proof.token for event in events):
            raise Invalid(("body", "event"), "it is of another try")
        is_last = report.stays_warm and isinstance(report.event, Ended)
        last = _launch(await self._database.read_at_once(find_ticket, report.proof)) if is_last else None
        is_news = await self._database.write(_store_report, report.proof, events, self._desk.scheduler_id)
        if last is not None:
            # Before the scheduler hears of the end, and submits what waits for it.
            self._desk.warm.stay(Ticket.of(last, report.proof.secret))
        # Of a report that is repeated, the first answer was lost, and perhaps its news.
        self._desk.tell(events if is_news else ())

    async def _next(self, proof: Proof) -> Following:
        return Following(await self._desk.warm.next(proof))

    async def _list_files(self, proof: Proof) -> DataFileList:
        await self._running(proof)
        return DataFileList(await self._files.list())

    async def _file(self, request: Request) -> Response:
        """Answer with a part of a data file: `?token=…&path=…&start=…`, with the secret as for a log."""
        await self._running(_proof_of(request))
        part = await self._files.read(request.query_params.get("path", ""), _start_of(request))
        return Response(part, media_type="application/octet-stream")

    async def _log(self, request: Request) -> Response:
        """Store a part of a try's log: `?token=…&start=…`, with the secret as `Authorization: Bearer …`."""
        start = _start_of(request)
        proof = _proof_of(request)
        data = await self._read(request, MOST_LOG_BYTES, lambda _: proof)
        found = await self._running(proof)
        most = self._settings.log.task_bytes + ROOM_FOR_REMARKS
        if start + len(data) > most:
            raise Invalid(("query", "start"), f"a log has at most {most} bytes")
        path = _launch(found).log_path
        return as_response(LogSize(await run_sync(self._desk.logs.append, path, found.log_start, start, data)))

    async def _running(self, proof: Proof) -> TicketRow:
        """Return the ticket of a try that a worker runs. Raises NotFound, and TicketRefused."""
        found = await self._database.read_at_once(find_ticket, proof)
        if found.state != CLAIMED:
            raise TicketRefused("no worker runs the try")
        return found


def _leading_proof(body: bytes) -> Proof:
    """Return the proof with which a message begins, as every worker's does. Raises Invalid."""
    if (found := LEADING_PROOF.match(body)) is None:
        raise Invalid(("body", "proof"), "it must come first in a long message")
    proof: Proof = decode_body(found[1], Proof)
    return proof


def _route(path: str, kind: type[T], function: Callable[[T], Awaitable[Any]], *, most: int = LONGEST_PROOF) -> Route:
    """Return the route of a small message, of `most` bytes."""

    async def answer(request: Request) -> Response:
        body = decode_body(await read_bytes(request, most), kind)
        return as_response(await function(body), HTTPStatus.OK)

    return Route(path, answer, methods=["POST"])


def _proof_of(request: Request) -> Proof:
    token, secret = request.query_params.get("token", ""), request.headers.get("authorization", "")
    return Proof(token, secret.removeprefix("Bearer "))


def _start_of(request: Request) -> int:
    given = request.query_params.get("start", "")
    if not (given.isascii() and given.isdecimal() and len(given) < 16):
        raise Invalid(("query", "start"), "it is not a number of bytes")
    return int(given)


class _OtherLog(Exception):
    """The ticket of a try names another log."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _store_claim(conn: Connection, claim: Claim, terms: WorkerTerms, log_path: str, log_start: int) -> Claimed:
    """Claim a try for a worker.

    Args:
        log_start: Where its log begins in the file `log_path`.

    Raises:
        _OtherLog: Its ticket, perhaps of an earlier version, names another file. Nothing is claimed.
    """
    found = claim_ticket(conn, claim.proof, worker=claim.worker, boot=claim.boot, terms=terms, log_start=log_start)
    launch = _launch(found)
    if launch.log_path != log_path:
        raise _OtherLog(launch.log_path)
    return Claimed(launch, terms, end=found.kill_reason)


def _store_report(conn: Connection, proof: Proof, events: Sequence[TryEvent], origin: str) -> bool:
    """Store what a worker reports of a try, and notify the scheduler of its run. Returns whether it is news.

    A report is repeated if its answer was lost, perhaps with the scheduler that has stored it: the one of its run may
    not have heard of it.

    Args:
        origin: The scheduler that stores it, which is told in its own process.
    """
    is_news = report_try(conn, proof, *events)
    if is_news or find_ticket(conn, proof).has_news:
        notify(conn, Hint("try", origin=origin))
    return is_news


def _launch(found: TicketRow) -> Launch:
    return msgspec.json.decode(found.launch, type=Launch)


def _terms(settings: Settings) -> WorkerTerms:
    """Return the terms of these settings. Blocks where the metadata of packages are not read yet."""
    return WorkerTerms(
        lease_seconds=settings.workers.lease,
        renew_interval=settings.workers.renew_interval,
        grace=settings.lease.grace,
        kill_time=settings.lease.kill_time,
        import_timeout=settings.parse.import_timeout,
        log_bytes=settings.log.task_bytes,
        default_timezone=settings.default_timezone,
        airflow=settings.airflow,
        airflow_options=options_of_processes(settings.airflow_options, settings.airflow_cfg_path),
        has_files=bool(settings.workers.files),
    )
