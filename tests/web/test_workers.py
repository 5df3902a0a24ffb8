"""What workers on other machines may ask: with the secret of a try's ticket, for that try, while it lasts."""

import threading
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import update

from asynsched.bell import Hint
from asynsched.clock import Clock, new_token
from asynsched.errors import NotFound
from asynsched.executors.log_stores import MOST_FILLER, FolderLogs
from asynsched.executors.requests import RequestAnswerer
from asynsched.executors.warm_workers import WarmWorkers
from asynsched.fernet_keys import keys_of
from asynsched.home import LOGS
from asynsched.protocol.messages import CodeVersion, Ended, Launch, Request, RunContext, SourceRef, Started
from asynsched.protocol.worker_messages import (
    MOST_LOG_BYTES,
    MOST_RENEWALS,
    PREFIX,
    Ask,
    Claim,
    Claimed,
    DataFileList,
    Following,
    Proof,
    Renew,
    Report,
    Ticket,
)
from asynsched.queries.context import QueryContext
from asynsched.settings import WorkersSettings
from asynsched.store.dags.dags import get_versions, latest_version
from asynsched.store.engines.opening import open_database
from asynsched.store.engines.postgres import COMMIT_TIMEOUT_SECONDS
from asynsched.store.engines.sqlite_connection import BUSY_TIMEOUT_SECONDS
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.schema import dag_run, ticket
from asynsched.store.secrets import get_variable
from asynsched.store.tickets import add_tickets, digest_of_secret, drop_news, tickets_of_runs
from asynsched.web import workers
from asynsched.web.app import make_app
from asynsched.web.workers import LONGEST_PROOF, MOST_BYTES
from asynsched.worker.schedulers import PATIENT
from tests.support.waiting import DEADLINE_SECONDS
from tests.web.conftest import Known

NOW = Clock().now()


class _Proven(Struct):
    """A message with nothing but its proof."""

    proof: Proof


@pytest.fixture
async def desk(filled, tmp_path):
    """The application of a scheduler, with two submitted tries, `one` and `two`, and a worker that sends."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "data.txt").write_text("some data")
    (folder / "more.sql").write_text("not wanted")
    (tmp_path / "outside.txt").write_text("not of the folder")
    settings = msgspec.structs.replace(
        filled.copy(tmp_path), dags_folder=str(folder), workers=WorkersSettings(files=("*.txt",))
    )
    database = await open_database(settings.database_url, synchronous="normal", keys=keys_of(settings))
    told = []
    known_here: dict[str, Launch] = {}
    parts = SimpleNamespace(
        scheduler_id="me", launch_of=known_here.get,
        answerer=RequestAnswerer(database, Clock()), logs=FolderLogs(settings.home_path / LOGS),
        tell=told.append, database=database, warm=WarmWorkers(Clock(), 60.0, 10),
    )  # fmt: skip
    not_asked: Any = None  # workers are answered from the scheduler's own database
    app = make_app(QueryContext(not_asked, settings.home_path, settings, Clock()), Known(), parts)
    proofs = [Proof(token, new_token()) for token in ("one", "two")]
    run = await database.read(get_run, "report", "first")
    (version,) = await database.read(get_versions, [(await database.read(latest_version, "report")).id])
    code = CodeVersion("v", "/dags", tuple(SourceRef(*msgspec.structs.astuple(ref)[:3]) for ref in version.sources))
    context = RunContext("report", "first", "manual", NOW)
    launches = [Launch(proof.token, "extract", -1, 1, 0, context, code, f"{proof.token}.log") for proof in proofs]
    known_here["two"] = launches[1]
    digests = {proof.token: digest_of_secret(proof.secret) for proof in proofs}

    def add(conn):
        conn.execute(update(dag_run).values(scheduler_id="me", lease_epoch=1))
        add_tickets(conn, launches, digests, executor="", owner="me", epoch=1, now=NOW)

    await database.write(add)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:

        async def send(path, body, status=200):
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            answer = await client.post(f"{PREFIX}{path}", content=data)
            assert answer.status_code == status, (path, answer.status_code, answer.text)
            return answer.content

        async def log(proof, start, data, status=200):
            headers = {"Authorization": f"Bearer {proof.secret}"}
            at = {"token": proof.token, "start": start}
            answer = await client.post(f"{PREFIX}/log", content=data, params=at, headers=headers)
            assert answer.status_code == status, (answer.status_code, answer.text)
            return answer.json()

        async def file(proof, path, start=0, status=200):
            headers = {"Authorization": f"Bearer {proof.secret}"}
            at = {"token": proof.token, "path": path, "start": start}
            answer = await client.post(f"{PREFIX}/file", params=at, headers=headers)
            assert answer.status_code == status, (answer.status_code, answer.text)
            return answer.content

        async def row(token):
            (found,) = [row for row in await database.read(tickets_of_runs, [run.id], "", "me") if row.token == token]
            return found

        yield SimpleNamespace(
            one=proofs[0], two=proofs[1], send=send, log=log, file=file, row=row, told=told, code=code,
            home=settings.home_path, settings=settings, database=database, warm=parts.warm,
            client=client, app=app, known_here=known_here,
        )  # fmt: skip
    await database.close()


async def test_a_worker_claims_a_try_and_does_all_for_it(desk):
    one = desk.one
    claimed = msgspec.json.decode(await desk.send("/claim", Claim(one, "w", "life")), type=Claimed)
    assert (claimed.launch.token, claimed.launch.task_id) == ("one", "extract")
    assert (claimed.terms.lease_seconds, claimed.terms.kill_time) == (120, 5)
    known = desk.code.sources[0].content_hash
    for wanted, answer in ((known, b'"value":"'), ("0" * 64, b'"found":false')):
        ask = Ask(one, Request("one", 1, "source_get", {"content_hash": wanted}))
        assert answer in await desk.send("/request", ask)
    assert b"there is no operation" in await desk.send("/request", Ask(one, Request("one", 2, "trigger_work")))
    assert b'"seconds":120' in await desk.send("/renew", Renew((one,)))
    # A part that comes twice is there once, and one that comes too early is asked for again.
    assert await desk.log(one, 0, b"first line\n") == {"n_bytes": 11}
    assert await desk.log(one, 20, b"third") == {"n_bytes": 11}
    assert await desk.log(one, 6, b"line\nsecond line\n") == {"n_bytes": 23}
    assert (desk.home / LOGS / "one.log").read_bytes() == b"first line\nsecond line\n"
    # The data files of the folder that the settings name, in parts.
    assert claimed.terms.has_files
    found = msgspec.json.decode(await desk.send("/files", one), type=DataFileList)
    assert [file.path for file in found.files] == ["data.txt"]
    assert [await desk.file(one, "data.txt", start) for start in (0, 5, 9, 99)] == [b"some data", b"data", b"", b""]
    began, ended = Started("one", NOW, 1), Ended("one", "success", NOW, return_value=msgspec.Raw(b"[1]"))
    await desk.send("/report", Report(one, began))
    for _ in range(2):
        await desk.send("/report", Report(one, ended))
    assert desk.told == [(began,), (ended,), ()], "after a repeated one, the database is asked"
    # A short try's start comes with its end.
    await desk.send("/claim", Claim(desk.two, "worker 1", "life"))
    await desk.send("/report", Report(desk.two, Ended("two", "success", NOW), Started("two", NOW, 1)))
    assert (await desk.row("two")).started is not None
    assert [type(event) for event in desk.told[-1]] == [Started, Ended]
    assert b'"return_value":[1]' in (await desk.row("one")).ended


async def test_a_home_without_what_came_before_a_try_takes_its_log_all_the_same(desk):
    file, most = desk.home / LOGS / "one.log", 3 * MOST_FILLER
    for n_before in (5, 200, most):
        file.write_bytes(b"x" * n_before)
        if n_before == 5:
            await desk.send("/claim", Claim(desk.one, "w", "life"))
        else:
            statement = update(ticket).where(ticket.c.token == "one").values(log_start=n_before)
            await desk.database.write(lambda conn, statement=statement: conn.execute(statement))
        file.unlink()  # it was stored, or this is another home
        assert await desk.log(desk.one, 11, b"second line\n") == {"n_bytes": 0}, "the worker begins again"
        for _ in range(2):
            assert await desk.log(desk.one, 0, b"first line\n") == {"n_bytes": 11}
        assert await desk.log(desk.one, 11, b"second line\n") == {"n_bytes": 23}
        log = file.read_bytes()
        assert log[n_before:] == b"first line\nsecond line\n"
        assert (log[:4], log[n_before - 1 : n_before]) == (b"*** ", b"\n")


async def test_a_repeated_report_is_announced_until_the_scheduler_of_its_run_has_heard(desk, monkeypatch):
    hints = []
    monkeypatch.setattr(workers, "notify", lambda _conn, hint: hints.append(hint))
    await desk.send("/claim", Claim(desk.one, "w", "life"))
    for n_hints in (1, 2):
        await desk.send("/report", Report(desk.one, Ended("one", "success", NOW)))
        assert hints == n_hints * [Hint("try", origin="me")], "the one that has stored it may be gone"
    await desk.database.write(drop_news, [await desk.row("one")])
    await desk.send("/report", Report(desk.one, Ended("one", "success", NOW)))
    assert len(hints) == 2


async def test_a_log_begins_where_the_file_ends_that_the_ticket_names(desk):
    (desk.home / LOGS / "two.log").write_bytes(b"said\n")
    desk.known_here["two"] = replace(desk.known_here["two"], log_path="of a later version.log")
    for _ in range(2):
        claimed = msgspec.json.decode(await desk.send("/claim", Claim(desk.two, "w", "life")), type=Claimed)
        assert (claimed.launch.log_path, (await desk.row("two")).log_start) == ("two.log", 5)


async def test_a_worker_that_stays_gets_another_ticket_after_its_try(desk):
    one, two, another = desk.one, desk.two, Ticket("three", "secret", ())
    for proof in (one, two):
        await desk.send("/claim", Claim(proof, "w", "life"))
        await desk.send("/next", proof, 409)
    await desk.send("/report", Report(one, Ended("one", "success", NOW)))
    await desk.send("/report", Report(Proof("two", one.secret), Ended("two", "success", NOW), stays_warm=True), 404)
    for proof in (one, two):
        await desk.send("/next", proof, 409)  # an older worker, which ends, and a try that goes on
    for _ in range(2):
        await desk.send("/report", Report(two, Ended("two", "success", NOW), stays_warm=True))
    await desk.send("/next", Proof("two", one.secret), 409)
    names = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.warm.hand_over, another, lambda last: names.append(last) or "job", lambda _: True)
        found = msgspec.json.decode(await desk.send("/next", two), type=Following)
        desk.warm.note_claim("three")
    assert found.ticket == another
    assert [(last.dag_id, last.task_id, last.token) for last in names] == [("report", "extract", "two")]
    await desk.send("/next", two, 409)


async def test_hostile_requests_are_refused(desk):
    one, two = desk.one, desk.two
    await desk.send("/claim", Claim(one, "w", "life"))
    end, pull = Ended("one", "success", NOW), Request("one", 1, "variable_get", {"key": "k"})
    wrong_ones = [("one", two.secret), ("none", one.secret), ("one", ""), ("", ""), ("\0", "")]
    for wrong in (Proof(*one) for one in wrong_ones):
        await desk.send("/claim", Claim(wrong, "w", "life"), 404)
        await desk.send("/request", Ask(wrong, Request(wrong.token, 1, "variable_get", {"key": "k"})), 404)
        await desk.send("/report", Report(wrong, Ended(wrong.token, "success", NOW)), 404)
        assert b'"end"' in await desk.send("/renew", Renew((wrong,)))
        await desk.log(wrong, 0, b"x", 404)
        await desk.send("/files", wrong, 404)
        await desk.file(wrong, "data.txt", status=404)
    # With the right secret, for another try.
    await desk.send("/report", Report(two, end), 422)
    await desk.send("/report", Report(two, Ended("two", "success", NOW), Started("one", NOW, 1)), 422)
    await desk.send("/request", Ask(two, pull), 422)
    # Of a try that no worker has claimed, or another one.
    await desk.send("/claim", Claim(one, "w", "another life"), 409)
    await desk.send("/report", Report(two, Ended("two", "success", NOW)), 409)
    await desk.send("/request", Ask(two, Request("two", 1, "variable_get", {"key": "k"})), 409)
    await desk.log(two, 0, b"x", 409)
    await desk.send("/files", two, 409)
    await desk.file(two, "data.txt", status=409)
    # A file that no pattern names, or that is not in the folder.
    for path in ("more.sql", "../outside.txt", str(desk.settings.dags_path.parent / "outside.txt"), "", "\0", "no.txt"):
        await desk.file(one, path, status=409)
    # No message of the protocol.
    for path in ("/request", "/report"):
        unproven = b'{"proof": {"token": "one", "secret": "x"}, "event": [%s[]]}' % (LONGEST_PROOF * b"[],")
        await desk.send(path, unproven, 404)
        await desk.send(path, b'{"event": []%s}' % (LONGEST_PROOF * b" "), 422)
        await desk.send(path, msgspec.json.encode(_Proven(one)) + b" " * MOST_BYTES, 413)
    for path in ("/claim", "/files", "/renew", "/request", "/report"):
        for body in (b"", b"{", b"[]", b"{}", b"\xff", b"[" * 10_000, b'{"proof": {"token": 1}}'):
            await desk.send(path, body, 422)
        await desk.send(path, b" " * (MOST_BYTES + 1), 413)
    await desk.send("/renew", Renew((one,) * (MOST_RENEWALS + 1)), 422)
    for start in ("", "-1", "x", "9" * 30, "٣"):
        await desk.log(one, start, b"x", 422)
        await desk.file(one, "data.txt", start, 422)
    await desk.log(one, 2 * desk.settings.log.task_bytes, b"x", 422)
    await desk.log(one, 0, b"x" * (MOST_LOG_BYTES + 1), 413)
    assert not (desk.home / LOGS / "one.log").exists()
    # Of a try that is over: its end was reported before, and the answer was lost.
    await desk.send("/report", Report(one, end))
    await desk.send("/report", Report(one, Ended("one", "failed", NOW)))
    assert b'"state":"success"' in (await desk.row("one")).ended
    await desk.send("/claim", Claim(one, "w", "life"), 409)
    await desk.send("/request", Ask(one, pull), 409)
    await desk.log(one, 0, b"x", 409)
    assert desk.told == [(end,), ()]


async def test_a_long_message_without_a_good_proof_is_not_read_to_its_end(desk):
    wrong = Proof("one", "x")

    async def body(begin):
        yield begin
        for _ in range(10):
            read.append(LONGEST_PROOF)
            yield b" " * LONGEST_PROOF

    for path, begin, headers in (
        ("/request", msgspec.json.encode(_Proven(wrong)), {}),
        ("/report", msgspec.json.encode(_Proven(wrong)), {}),
        ("/log?token=one&start=0", b"", {"Authorization": f"Bearer {wrong.secret}"}),
    ):
        read = []
        answer = await desk.client.post(f"{PREFIX}{path}", content=body(begin), headers=headers)
        assert answer.status_code == 404
        assert len(read) <= 2, path


async def test_a_worker_that_goes_in_the_middle_of_a_log_costs_nothing(desk):
    await desk.send("/claim", Claim(desk.one, "w", "life"))
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": f"{PREFIX}/log",
        "query_string": b"token=one&start=0", "headers": [(b"authorization", f"Bearer {desk.one.secret}".encode())],
    }  # fmt: skip
    received = [{"type": "http.request", "body": b"half a", "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return received.pop(0)

    async def send(message):
        sent.append(message)

    await desk.app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert await desk.log(desk.one, 0, b"whole\n") == {"n_bytes": 6}, "nothing of it is stored"


@pytest.mark.parametrize("filled", ["sqlite"], indirect=True)  # whose writes wait in a queue
async def test_a_request_that_waits_for_too_long_is_answered_and_never_carried_out(desk, monkeypatch):
    await desk.send("/claim", Claim(desk.one, "w", "life"))
    has_begun, may_end = threading.Event(), threading.Event()

    def hold(_conn):
        has_begun.set()
        assert may_end.wait(DEADLINE_SECONDS)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.database.write, hold)
        await anyio.to_thread.run_sync(has_begun.wait)
        with monkeypatch.context() as patch:
            patch.setattr(workers, "ANSWER_SECONDS", 0.05)
            late = Request("one", 1, "variable_set", {"key": "k", "value": "older"})
            assert b"has not answered" in await desk.send("/request", Ask(desk.one, late), 503)
        may_end.set()
    await desk.database.write(lambda _conn: None)  # after all that have waited
    with pytest.raises(NotFound):
        await desk.database.read(get_variable, "k")


def test_a_worker_waits_for_longer_than_a_scheduler_goes_on_with_a_request():
    assert PATIENT.read > workers.ANSWER_SECONDS + BUSY_TIMEOUT_SECONDS
    assert PATIENT.read > workers.ANSWER_SECONDS + COMMIT_TIMEOUT_SECONDS
