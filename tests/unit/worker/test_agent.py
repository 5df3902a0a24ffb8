"""The agent of a worker, with schedulers that a test answers for."""

import threading
from collections import Counter, defaultdict
from datetime import timedelta

import anyio
import httpx
import msgspec
import pytest
from msgspec.structs import replace

from asynsched.clock import Clock
from asynsched.errors import ERROR_HEADER
from asynsched.executors.base import Held
from asynsched.home import LOGS
from asynsched.protocol.home_files import KEEPER_SOCKET
from asynsched.protocol.messages import Ended, Started
from asynsched.protocol.worker_messages import Claim, Claimed, LogSize, Renew, Renewal, Renewed, Report, Ticket
from asynsched.settings import Settings
from asynsched.worker import agent
from asynsched.worker.agent import Agent, Outcome, refused
from asynsched.worker.schedulers import Schedulers
from asynsched.worker.sources import SourceCache
from asynsched.worker.tickets import TICKETS, KeptTicket, TicketFolder
from tests.store.test_tickets import TERMS, launch_of
from tests.support.waiting import DEADLINE_SECONDS, eventually

UNWANTED = "a user has cancelled it"


async def test_a_try_that_is_unwanted_when_its_claim_is_answered_ends_without_a_start(tmp_path):
    reports = []

    def answer(request: httpx.Request) -> httpx.Response:
        answers = {"claim": Claimed(launch_of("one"), TERMS, end=UNWANTED), "renew": Renewed(()), "report": None}
        kind = request.url.path.rpartition("/")[2]
        if kind == "report":
            reports.append(msgspec.json.decode(request.content, type=Report))
        return httpx.Response(200, content=msgspec.json.encode(answers[kind]))

    clock = Clock()
    schedulers = Schedulers(clock, httpx.MockTransport(answer))
    worker = Agent(Settings(home=str(tmp_path)), "w1", clock, schedulers)
    async with worker.serving():
        assert await worker.work(Ticket("one", "secret", ("http://here:1",))) == Outcome(
            "failed", f"failed: {UNWANTED}"
        )
    (report,) = reports
    assert isinstance(report.event, Ended)
    assert (report.event.reason, report.event.started_at, report.started) == (UNWANTED, None, None)
    assert not (tmp_path / KEEPER_SOCKET).exists(), "it needs no process"


class KeptExecutor:
    """A keeper that starts whatever it gets, and ends it when it is told to.

    Attributes:
        held: The tokens of the tries that it has had from an agent before this one, until `found_lease`.
    """

    held, found_lease = (), None

    def __init__(self, context, _options):
        self.context = context
        self.launched, self.kills, self.leases = [], [], []

    async def start(self, _epoch):
        return Held(running=frozenset(self.held))

    async def launch(self, launches):
        self.launched += [launch.token for launch in launches]
        for launch in launches:
            self.context.report(Started(launch.token, self.context.clock.now(), 1))

    async def kill(self, token, reason, cause="task"):
        self.kills.append((token, cause))
        self.end(token, reason, cause)

    def end(self, token, reason, cause):
        self.context.report(Ended(token, "failed", self.context.clock.now(), reason=reason, cause=cause))

    def renew_lease(self, valid_until):
        self.leases.append(valid_until)

    async def acknowledge(self, _tokens):
        pass

    async def drain(self, _deadline):
        for token in self.launched:
            self.end(token, "stopped", "interrupted")

    async def close(self):
        pass


class Site:
    """Schedulers that answer as they are told to, and an agent with a `KeptExecutor`.

    Attributes:
        refusals: The tokens whose tries the schedulers no longer wait for, so that they renew none of them.
        has_taken: Whether they take reports of those tries.
        lease_seconds: How long they renew leases, by token; by default as the terms say.
        log_path: Of all tries; by default, each has its own.
        grows: Whether the log of the try `one` gets longer as fast as they take it.
        away: A host that refuses connections.
        void: The secret of tickets in whose place schedulers have given out others.
        mute: A host at which nothing answers until `speaks_again`; `unanswered` are the kinds of messages to it.
    """

    def __init__(self, folder, monkeypatch, terms=TERMS):
        self.settings = Settings(home=str(folder))
        self.clock, self.terms, self.refusals = Clock(), terms, {}
        self.reports, self.executors, self.lease_seconds = [], [], {}
        self.has_taken, self.grows, self.home, self.n_log_parts = True, True, folder, Counter()
        self.mute, self.unanswered, self.speaks_again = "", set(), anyio.Event()
        self.away, self.void, self.n_refused_connections, self.log_path = "", "", 0, ""
        self.log_parts = defaultdict(list)

        def make(context, options):
            self.executors.append(KeptExecutor(context, options))
            return self.executors[-1]

        monkeypatch.setattr(agent, "LocalExecutor", make)
        self.agent = self.new_agent()

    def new_agent(self):
        schedulers = Schedulers(self.clock, httpx.MockTransport(self.answer))
        return Agent(self.settings, "w1", self.clock, schedulers)

    @property
    def executor(self):
        return self.executors[-1]

    async def answer(self, request: httpx.Request) -> httpx.Response:
        kind = request.url.path.rpartition("/")[2]
        if request.url.host == self.away:
            self.n_refused_connections += 1
            raise httpx.ConnectError("connection refused")
        if request.url.host == self.mute:
            self.unanswered.add(kind)
            await self.speaks_again.wait()
        if kind == "claim" and msgspec.json.decode(request.content, type=Claim).proof.secret == self.void:
            return httpx.Response(409, json={"detail": "it is void"}, headers={ERROR_HEADER: "TicketRefused"})
        if kind == "claim":
            launch = launch_of(msgspec.json.decode(request.content, type=Claim).proof.token)
            answer = Claimed(replace(launch, log_path=self.log_path or launch.log_path), self.terms)
        elif kind == "renew":
            proofs = msgspec.json.decode(request.content, type=Renew).proofs
            usual = self.terms.lease_seconds
            renewals = {one.token: Renewal(one.token, self.lease_seconds.get(one.token, usual)) for one in proofs}
            answer = Renewed(tuple((renewals | self.refusals)[one.token] for one in proofs))
        elif kind == "log":
            token, start = request.url.params["token"], int(request.url.params["start"])
            self.n_log_parts[token] += 1
            self.log_parts[token].append(request.content)
            if token == "one" and self.grows:
                with (self.home / LOGS / "one.log").open("ab") as log:
                    log.write(b"more\n")
            answer = LogSize(start + len(request.content))
        else:
            report = msgspec.json.decode(request.content, type=Report)
            if report.proof.token in self.refusals and not self.has_taken:
                return httpx.Response(503)
            self.reports.append(report.event)
            answer = None
        return httpx.Response(200, content=msgspec.json.encode(answer))

    async def go_on(self, token, log):
        """Wait until a try has begun, write a line to its log, and end it."""
        await eventually(lambda: token in self.executor.launched, f"{token} has begun")
        with log.open("ab") as file:
            file.write(b"more\n")
        self.executor.end(token, "", "task")

    def ended(self, token):
        return [one for one in self.reports if isinstance(one, Ended) and one.token == token]


def ticket_of(token: str, *hosts: str) -> Ticket:
    return Ticket(token, "secret", tuple(f"http://{host}:1" for host in hosts or ("here",)))


@pytest.mark.parametrize("refusal", [Renewal("one", end="gone"), Renewal("one")])
async def test_a_try_whose_lease_is_over_ends_alone_although_nobody_takes_its_end(tmp_path, monkeypatch, refusal):
    terms = replace(TERMS, lease_seconds=5.0, renew_interval=0.05, grace=0.2, kill_time=0.1)
    site = Site(tmp_path, monkeypatch, terms)
    site.lease_seconds["two"] = 600.0
    async with site.agent.serving(), anyio.create_task_group() as tries:
        for token in ("one", "two"):
            tries.start_soon(site.agent.work, ticket_of(token))
        await eventually(lambda: site.executors and len(site.executor.launched) == 2, "both have begun")
        site.refusals["one"], site.has_taken = refusal, False
        await eventually(lambda: site.executor.kills, "the one whose lease is not renewed is ended")
        assert site.executor.kills == [("one", "task" if refusal.end else "machine")]
        over = site.clock.boottime() + terms.lease_seconds
        await eventually(lambda: site.executor.leases[-1] > over, "the lease of the other goes on")
        assert len(site.executor.kills) == 1
        site.has_taken = True
        site.executor.end("two", "", "task")
    assert len(site.ended("one")) == len(site.ended("two")) == 1


async def test_mute_schedulers_hold_up_no_try_of_another_database(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "LOG_PAUSE", timedelta(seconds=0.05))
    terms = replace(TERMS, lease_seconds=600.0, renew_interval=0.05)
    site = Site(tmp_path, monkeypatch, terms)
    site.grows, site.lease_seconds["two"] = False, 5.0
    async with site.agent.serving(), anyio.create_task_group() as tries:
        tries.start_soon(site.agent.work, ticket_of("one", "elsewhere"))
        tries.start_soon(site.agent.work, ticket_of("two", "here"))
        await eventually(lambda: site.executors and len(site.executor.launched) == 2, "both have begun")
        soon = site.clock.boottime() + 60.0
        await eventually(lambda: site.executor.leases[-1] < soon, "the shorter lease is told")
        site.mute = "elsewhere"
        later, n_parts = site.clock.boottime() + 5.5, site.n_log_parts["two"]
        await eventually(lambda: site.executor.leases[-1] > later, "the lease of the other try goes on")
        (tmp_path / LOGS / "one.log").write_bytes(b"said\n")
        await eventually(lambda: "log" in site.unanswered, "a log is not taken")
        (tmp_path / LOGS / "two.log").write_bytes(b"said\n")
        await eventually(lambda: site.n_log_parts["two"] > n_parts, "the other one's is")
        site.mute = ""
        site.speaks_again.set()
        for token in ("one", "two"):
            site.executor.end(token, "", "task")


async def test_a_resumed_try_that_nobody_renews_ends_alone(tmp_path, monkeypatch):
    terms = replace(TERMS, lease_seconds=600.0, renew_interval=0.05, grace=1.0, kill_time=0.1)
    site = Site(tmp_path, monkeypatch, terms)
    folder, site.mute, site.grows = TicketFolder(tmp_path), "elsewhere", False
    for token, host in (("one", "elsewhere"), ("two", "here")):
        folder.keep(KeptTicket(ticket_of(token, host), f"{token}.log", 0, terms))
    found = site.clock.boottime() + 1.0
    monkeypatch.setattr(KeptExecutor, "held", ("one", "two"))
    monkeypatch.setattr(KeptExecutor, "found_lease", found)
    async with site.agent.serving():
        await eventually(lambda: site.executor.leases and site.executor.leases[-1] > found, "the other's is told")
        assert site.executor.kills == [("one", "machine")]
        assert site.executor.leases[0] == found, "until then, the keeper has no longer lease"
        site.mute = ""
        site.speaks_again.set()
        site.executor.end("two", "", "task")
    assert len(site.ended("one")) == len(site.ended("two")) == 1


async def test_a_stop_before_the_first_keeper_is_ready_lets_no_try_begin(tmp_path, monkeypatch):
    site, is_starting, is_ready = Site(tmp_path, monkeypatch), anyio.Event(), anyio.Event()

    async def start(self, _epoch):
        is_starting.set()
        await is_ready.wait()
        return Held(frozenset(), frozenset(), frozenset())

    monkeypatch.setattr(KeptExecutor, "start", start)
    async with site.agent.serving(), anyio.create_task_group() as tries:
        tries.start_soon(site.agent.work, ticket_of("one"))
        await is_starting.wait()
        await site.agent.drain()
        is_ready.set()
        # A ticket that comes as late as this is tried elsewhere.
        assert (await site.agent.work(ticket_of("two"))).kind == "failed"
    assert site.executor.launched == []
    for token in ("one", "two"):
        (ended,) = site.ended(token)
        assert ended.cause == "interrupted"


async def test_a_stop_returns_tickets_for_which_no_scheduler_answers(tmp_path, monkeypatch):
    site, outcomes = Site(tmp_path, monkeypatch), []
    site.away = "away"

    async def work(token):
        outcomes.append(await site.agent.work(ticket_of(token, "away")))

    with anyio.fail_after(DEADLINE_SECONDS):
        async with site.agent.serving(), anyio.create_task_group() as tries:
            tries.start_soon(work, "one")
            await eventually(lambda: site.n_refused_connections, "it has asked")
            site.agent.end_claims()
            tries.start_soon(work, "two")
    assert outcomes == 2 * [agent.RETURNED]
    outcomes.clear()

    async def wait_for(ticket):
        outcomes.append(await site.agent.until_over(ticket))

    site.agent = site.new_agent()
    with anyio.fail_after(DEADLINE_SECONDS):
        async with site.agent.serving(), anyio.create_task_group() as tries:
            for ticket in site.agent.resumed:
                tries.start_soon(wait_for, ticket)
            site.agent.end_claims()
    assert outcomes == 2 * [agent.RETURNED], "the next worker of this home cannot claim them either"
    site.away = ""
    site.agent = site.new_agent()
    async with site.agent.serving():
        # An answer to their claims may have been lost, and then no other worker gets these tries.
        assert {ticket.token for ticket in site.agent.resumed} == {"one", "two"}
        await eventually(lambda: site.executors and len(site.executor.launched) == 2, "they are claimed")
        for token in ("one", "two"):
            site.executor.end(token, "", "task")
    assert not list((tmp_path / "tickets").iterdir())


@pytest.mark.parametrize("order", [("void", "secret"), ("secret", "void")], ids=["in order", "delivered again"])
async def test_of_two_tickets_of_a_try_the_schedulers_take_the_one_given_out_last(tmp_path, monkeypatch, order):
    site, outcomes = Site(tmp_path, monkeypatch), {}
    site.away, site.void = "away", "void"

    async def work(secret):
        outcomes[secret] = await site.agent.work(replace(ticket_of("one", "away"), secret=secret))

    async with site.agent.serving(), anyio.create_task_group() as tries:
        for n, secret in enumerate(order, start=1):
            tries.start_soon(work, secret)
            await eventually(lambda n=n: site.n_refused_connections >= n, "it waits")
        assert (await site.agent.work(replace(ticket_of("one", "away"), secret=order[0]))).kind == "refused"
        site.away = ""
        await eventually(lambda: site.executors and site.executor.launched and "void" in outcomes, "one is claimed")
        assert list((tmp_path / "tickets").iterdir())
        site.executor.end("one", "", "task")
    assert outcomes == {"void": refused("it is void"), "secret": Outcome("failed", "failed")}
    assert site.executor.launched == ["one"]


@pytest.mark.parametrize("token", ["../x", "", "\ud800"])
async def test_a_message_that_is_no_ticket_is_refused_and_concerns_no_other(tmp_path, monkeypatch, token):
    site = Site(tmp_path, monkeypatch)
    async with site.agent.serving():
        assert (await site.agent.work(ticket_of(token))).kind == "refused"


async def test_a_log_that_cannot_be_read_holds_up_neither_its_end_nor_other_tries(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    async with site.agent.serving(), anyio.create_task_group() as tries:
        for token in ("one", "two"):
            tries.start_soon(site.agent.work, ticket_of(token))
        await eventually(lambda: site.executors and len(site.executor.launched) == 2, "both have begun")
        (tmp_path / LOGS / "two.log").mkdir()  # by its own task
        site.executor.end("two", "", "task")
        await eventually(lambda: site.ended("two"), "its end is told")
        site.executor.end("one", "", "task")
    assert site.ended("one")


async def test_a_try_that_is_ended_while_its_claim_waits_never_begins(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    site.away = "away"
    async with site.agent.serving(), anyio.create_task_group() as tries:
        tries.start_soon(site.agent.work, ticket_of("one", "away"))
        await eventually(lambda: site.n_refused_connections, "it waits")
        await site.agent.end("one", "it was revoked")
        site.away = ""
        await eventually(lambda: site.ended("one"), "its end is told")
    (ended,) = site.ended("one")
    assert (ended.reason, ended.cause, ended.started_at) == ("it was revoked", "task", None)
    assert site.executors == []


async def test_a_try_that_this_machine_cannot_start_ends_and_holds_up_nothing(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch, replace(TERMS, default_timezone="Nowhere/Atlantis"))
    async with site.agent.serving():
        assert "Nowhere/Atlantis" in (await site.agent.work(ticket_of("one"))).text
    (ended,) = site.ended("one")
    assert (ended.state, ended.cause) == ("failed", "machine")
    TicketFolder(tmp_path).keep(KeptTicket(ticket_of("two"), "two.log", 0, site.terms))
    site.agent = site.new_agent()
    async with site.agent.serving():
        assert site.agent.resumed == ()


async def test_a_try_whose_ticket_cannot_be_kept_ends_without_a_start(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    keep = TicketFolder.keep

    def keep_unclaimed(folder, kept):
        if kept.terms is not None:
            raise OSError("the disk is full")
        keep(folder, kept)

    monkeypatch.setattr(TicketFolder, "keep", keep_unclaimed)
    async with site.agent.serving():
        outcome = await site.agent.work(ticket_of("one"))
    assert outcome == Outcome("failed", "failed: its code cannot be fetched: the disk is full")
    assert site.executors == []


async def test_a_keeper_hears_of_a_lease_only_if_it_counts_on_a_longer_one(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "FIRST_RENEWAL", 3600.0)
    site = Site(tmp_path, monkeypatch, replace(TERMS, lease_seconds=600.0, renew_interval=100.0))

    async def begun(token):
        tries.start_soon(site.agent.work, ticket_of(token))
        await eventually(lambda: site.executors and token in site.executor.launched, f"{token} has begun")
        return list(site.executor.leases)

    async with site.agent.serving(), anyio.create_task_group() as tries:
        told = await begun("one")
        assert await begun("two") == told
        site.terms = replace(site.terms, lease_seconds=300.0)
        told = await begun("shorter")
        assert told[-1] < told[0] - 290
        assert await begun("other") == told
        site.terms = replace(site.terms, lease_seconds=150.0)
        brief = await begun("brief")
        assert brief[:-1] == told
        assert len(await begun("as-brief")) > len(brief), "it would be over before the next renewal but one"
        for token in site.executor.launched:
            site.executor.end(token, "", "task")


async def test_a_try_whose_end_nobody_takes_frees_its_slot_after_its_lease(tmp_path, monkeypatch):
    terms = replace(TERMS, renew_interval=0.05, lease_seconds=1.0, grace=0.6, kill_time=0.1)
    site, outcomes = Site(tmp_path, monkeypatch, terms), []

    async def work():
        outcomes.append(await site.agent.work(ticket_of("one", "away")))

    async with site.agent.serving(), anyio.create_task_group() as tries:
        tries.start_soon(work)
        await eventually(lambda: site.executors and site.executor.launched, "it has begun")
        assert site.agent.n_running == 1
        site.away = "away"
        await eventually(lambda: outcomes, "its slot is free")
        assert site.agent.n_running == 0
        site.away = ""
    assert outcomes == [Outcome("failed", "failed: no scheduler takes its end")]
    assert len(site.ended("one")) == 1, "it is told once they are back"


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_log_that_two_attempts_write_stays_until_both_have_ended(tmp_path, monkeypatch, at_once):
    site = Site(tmp_path, monkeypatch)
    site.grows, site.log_path = False, "called.log"
    log = tmp_path / LOGS / site.log_path
    async with site.agent.serving(), anyio.create_task_group() as tries:
        tries.start_soon(site.agent.work, ticket_of("two"))
        await eventually(lambda: site.executors and len(site.executor.launched) == 1, "it has begun")
        async with anyio.create_task_group() as first:
            first.start_soon(site.agent.work, ticket_of("one"))
            await eventually(lambda: len(site.executor.launched) == 2, "so has the other one")
            log.write_bytes(b"said\n")
            site.executor.end("one", "", "task")
            if at_once:
                site.executor.end("two", "", "task")
        if not at_once:
            await eventually(lambda: not list((tmp_path / TICKETS).glob("one*")), "the first attempt is forgotten")
            assert log.read_bytes() == b"said\n"
            site.executor.end("two", "", "task")
    assert not log.exists()


async def test_a_log_stays_if_the_next_process_of_its_try_is_claimed_before_its_end(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    site.grows, site.log_path = False, "called.log"
    log = tmp_path / LOGS / site.log_path
    is_known, may_go_on = threading.Event(), threading.Event()

    def missing(_cache, _hashes):
        if log.exists():
            is_known.set()
            assert may_go_on.wait(DEADLINE_SECONDS)
        return ()

    monkeypatch.setattr(SourceCache, "missing", missing)
    async with site.agent.serving(), anyio.create_task_group() as tries:
        tries.start_soon(site.agent.work, ticket_of("one"))
        await eventually(lambda: site.executors and site.executor.launched, "it has begun")
        log.write_bytes(b"said\n")
        tries.start_soon(site.agent.work, ticket_of("two"))
        await eventually(is_known.is_set, "the next process knows how long the log is")
        site.executor.end("one", "", "task")
        await eventually(lambda: not list((tmp_path / TICKETS).glob("one*")), "the former one is forgotten")
        may_go_on.set()
        await site.go_on("two", log)
    assert site.log_parts["two"] == [b"more\n"]


async def test_a_log_that_is_being_removed_is_gone_before_the_next_process_writes_it(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    site.grows, site.log_path = False, "called.log"
    log = tmp_path / LOGS / site.log_path
    clear, is_clearing, is_too_early = Agent._clear, threading.Event(), threading.Event()

    def clear_late(self, held, **flags):
        is_clearing.set()
        is_too_early.wait(0.1)  # the next process should not get as far as that
        clear(self, held, **flags)

    def missing(_cache, _hashes):
        if log.exists():
            is_too_early.set()
        return ()

    monkeypatch.setattr(Agent, "_clear", clear_late)
    monkeypatch.setattr(SourceCache, "missing", missing)
    async with site.agent.serving(), anyio.create_task_group() as tries:
        tries.start_soon(site.agent.work, ticket_of("one"))
        await eventually(lambda: site.executors and site.executor.launched, "it has begun")
        log.write_bytes(b"said\n")
        site.executor.end("one", "", "task")
        await eventually(is_clearing.is_set, "its log is about to be removed")
        tries.start_soon(site.agent.work, ticket_of("two"))
        await site.go_on("two", log)
    assert site.log_parts["two"] == [b"more\n"]


async def test_a_log_that_grows_as_fast_as_it_is_sent_does_not_hold_up_others(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "LOG_PAUSE", timedelta(milliseconds=1))
    site = Site(tmp_path, monkeypatch)
    async with site.agent.serving(), anyio.create_task_group() as tries:
        for token in ("one", "two"):
            tries.start_soon(site.agent.work, ticket_of(token))
        await eventually(lambda: site.executors and len(site.executor.launched) == 2, "both have begun")
        (tmp_path / LOGS / "one.log").write_bytes(b"begins\n")
        await eventually(lambda: site.n_log_parts["one"] > 1, "one sends its log")
        (tmp_path / LOGS / "two.log").write_bytes(b"begins\n")
        await eventually(lambda: site.n_log_parts["two"], "the other one sends its log, too")
        site.grows = False
        for token in ("one", "two"):
            site.executor.end(token, "", "task")
