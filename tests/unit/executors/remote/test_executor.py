"""The executor of tries on other machines, on a real database: what it submits, keeps, ends and reports."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from structlog.testing import capture_logs

from asynsched import slices
from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable
from asynsched.executors.base import ExecutorContext
from asynsched.executors.remote import executor as executor_module
from asynsched.executors.remote.engine import Accepted, Engine, Job, Later, Rejected, Sight
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.executors.remote.verdicts import GivenUp, Seen
from asynsched.executors.tokens import new_callback_token
from asynsched.protocol.messages import Ended, Started
from asynsched.settings import Settings, WorkersSettings
from asynsched.store.engines.opening import open_inline
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.transitions import Batch, apply
from asynsched.store.schema import CallbackRequest, TicketRow, callback_request, dag_run, ticket
from asynsched.store.tickets import (
    CLAIMED,
    claim_ticket,
    digest_of_secret,
    end_ticket,
    note_tickets,
    report_try,
    request_kill,
    tickets_of_runs,
)
from tests.store.test_runs import NOW, new_run, task
from tests.store.test_tickets import LIFE, TERMS, launch_of
from tests.support.passing_database import PassingDatabase
from tests.support.waiting import eventually, eventually_true

SHORT_LIFE = LIFE | {"terms": msgspec.structs.replace(TERMS, lease_seconds=0.1, grace=0.0, kill_time=0.0)}
ENGINE_IDS = sa.select(sa.func.max(ticket.c.engine_id))
N_TAKEN = sa.select(sa.func.count()).where(ticket.c.engine_id != "")
SIGHT_OF_T3 = sa.select(ticket.c.sight).where(ticket.c.token == "t3", ticket.c.sight.like("%refused"))


class Disturbed(PassingDatabase):
    """A database that a test disturbs: `before` is called before a query of a name, `after` after it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}
        self.fails_for = ""
        """The token of a try that it cannot end."""
        self.on_note: Any = lambda notes: None

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        if query is end_ticket and args[0].token == self.fails_for:
            raise StoreUnavailable("away")
        if query is note_tickets:
            self.on_note(kwargs)
        await self.before.get(query.__name__, nothing)()
        answer = await super().pass_on(call, query, args, kwargs)
        await self.after.get(query.__name__, nothing)()
        return answer


async def nothing() -> None:
    pass


def failing(times: int = 1) -> Any:
    """Return a hook that fails so often, as a database that is away."""
    left = iter(range(times))

    async def fail() -> None:
        if next(left, None) is not None:
            raise StoreUnavailable("away")

    return fail


class NotedEngine(Engine):
    """Notes its jobs."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        self.n_cancels = 0
        """Calls of `cancel`, also those that failed."""
        self.n_failures = 0
        self.calls: list[list[str]] = []
        """The tokens of each call of `submit`, also of those that failed."""
        self.bad: set[str] = set()
        """Tokens and ids of jobs at which it fails."""
        self.rejected: set[str] = set()
        self.later: set[str] = set()
        self.before_answer = nothing
        self.sights: Any = {}.copy
        self.looks: list[list[str]] = []
        """The ids of each call of `look`."""

    async def submit(self, jobs: Sequence[Job]) -> Sequence[Accepted | Rejected | Later]:
        tokens = [job.ticket.token for job in jobs]
        self.calls.append(tokens)
        await self.before_answer()
        if self.n_failures:
            self.n_failures -= 1
            raise OSError("the broker is away")
        if self.bad.intersection(tokens):
            raise OSError("Connection refused")
        return [self._take(job) for job in jobs]

    def _take(self, job: Job) -> Accepted | Rejected | Later:
        if job.ticket.token in self.rejected:
            return Rejected("no such queue")
        if job.ticket.token in self.later:
            return Later("it is full")
        self.jobs.append(job)
        return Accepted(f"job-{len(self.jobs)}")

    async def cancel(self, engine_ids: Sequence[str]) -> None:
        self.n_cancels += 1
        if self.bad.intersection(engine_ids):
            raise OSError("Connection refused")
        self.cancelled += engine_ids

    async def look(self, engine_ids: Sequence[str]) -> Mapping[str, Sight]:
        self.looks.append(list(engine_ids))
        return self.sights()

    @property
    def tokens(self) -> list[str]:
        """Those of the jobs that it has taken."""
        return [job.ticket.token for job in self.jobs]


class NotedExecutor(RemoteExecutor):
    engine_class = NotedEngine


@pytest.fixture
async def far(tmp_path):
    """A started executor of the scheduler `me`, with a run whose task instance awaits the try `one`."""
    database = Disturbed(open_inline())

    def prepare(conn: sa.Connection) -> None:
        run = insert_run(conn, new_run(logical_date=None))
        conn.execute(sa.update(dag_run).values(scheduler_id="me", lease_epoch=1, state="running"))
        apply(conn, Batch(1, new_tasks=[task(run, "a", "running", try_number=1, token="one")]))

    await database.write(prepare)
    reports: list[Started | Ended] = []
    executors = []

    async def start():
        workers = WorkersSettings(addresses=("http://here:1",), renew_interval=0.02, claim_timeout=0.1)
        context = ExecutorContext(
            home=tmp_path, settings=Settings(workers=workers), clock=Clock(), scheduler_id="me", report=reports.append,
            answer=None, database=database,
        )  # fmt: skip
        executor = NotedExecutor(context)
        executors.append(executor)
        return executor, await executor.start(1)

    executor, _ = await start()
    yield SimpleNamespace(executor=executor, engine=executor.engine, database=database, reports=reports, start=start)
    for one in executors:
        await one.close()


async def rows(database) -> dict[str, TicketRow]:
    return {row.token: row for row in await database.read(tickets_of_runs, [1], "", "me")}


def job_of(executor: RemoteExecutor, token: str) -> Job:
    return executor._job(executor._tries[token])


class ShiftedClock(Clock):
    """A clock that a test puts forward by `shift` seconds."""

    shift = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.shift


async def look_rarely(executor: RemoteExecutor) -> None:
    """Wait for the first look of the executor, and put off the next one by an hour."""
    await eventually(lambda: executor._looked_at is not None, "it has looked once")
    executor._interval = timedelta(hours=1)


async def end_one(far: Any) -> list[Started | Ended]:
    """Launch the try `one`, and store its start and its end as its worker's; return these."""
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it was submitted")
    proof, events = far.engine.jobs[0].ticket.proof, [Started("one", NOW, 1), Ended("one", "success", NOW, NOW)]
    await far.database.write(claim_ticket, proof, **LIFE)
    await far.database.write(report_try, proof, *events)
    return events


async def states(database) -> list[str]:
    return list(await database.read(lambda conn: conn.scalars(sa.select(ticket.c.state)).all()))


async def test_two_callbacks_that_write_one_log_run_one_after_the_other(far):
    launches = [replace(launch_of(new_callback_token()), callback={"event": "on_failure"}) for _ in range(3)]
    first, second, other = replace(launches[0], log_path="same"), replace(launches[1], log_path="same"), launches[2]

    def begin(conn: sa.Connection) -> None:
        for number, launch in enumerate((first, second, other)):
            request = CallbackRequest(
                id=number + 1, dag_run_id=1, task_id=str(number), event="on_failure", state="running",
                token=launch.token, created_at=NOW, scheduler_id="me",
            )  # fmt: skip
            conn.execute(callback_request.insert(), msgspec.structs.asdict(request))

    await far.database.write(begin)
    await far.executor.launch([first, second, other])
    await eventually(lambda: len(far.engine.jobs) == 2, "two are submitted")
    assert far.engine.tokens == [first.token, other.token]
    await far.executor.kill(first.token, "it takes too long")
    await eventually(lambda: len(far.engine.jobs) == 3, "the first has ended")


async def test_a_try_whose_ticket_is_just_being_stored_is_kept_by_a_stop(far):
    async def stop() -> None:
        far.database.after.clear()
        await far.executor.drain(NOW)

    far.database.after["add_tickets"] = stop
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it was submitted")
    assert (far.reports, far.executor.kept) == ([], {"one"})
    await far.executor.launch([launch_of("two")])
    assert [(end.token, end.cause) for end in far.reports] == [("two", "interrupted")]


async def test_a_try_is_killed_wherever_it_is(far):
    await far.executor.launch([launch_of("one")])
    await far.executor.kill("one", "a user")
    await eventually(lambda: far.reports, "it has ended")
    assert (far.reports[0].reason, far.engine.jobs) == ("a user", []), "it was not stored yet"
    # The answer to the commit is lost: whether it is stored is found out before it is ended.
    far.reports.clear()

    async def lose() -> None:
        far.database.after.clear()
        raise StoreUnavailable("the answer is lost")

    far.database.after["add_tickets"] = lose
    await far.executor.launch([launch_of("two")])
    await eventually(lambda: not far.database.after, "it is stored")
    await far.executor.kill("two", "a user")
    await eventually(lambda: far.reports, "it has ended")
    assert (await states(far.database), far.engine.jobs) == (["ended"], [])
    await far.executor.launch([launch_of("three")])
    await eventually(lambda: far.engine.jobs, "it was submitted")
    await far.executor.kill("three", "a user")
    await eventually(lambda: far.engine.cancelled == ["job-1"], "its job is cancelled")


async def test_what_a_worker_reports_to_this_scheduler_is_heard_at_once_and_only_once(far):
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it was submitted")
    began, ended = Started("one", NOW, 1), Ended("one", "success", NOW, NOW)
    far.executor.hear([Ended("of another executor", "success", NOW), began, began, ended, ended])
    assert far.reports == [began, ended]


async def test_what_nobody_tells_is_heard_at_the_next_look(far):
    events = await end_one(far)
    await eventually(lambda: far.reports == events, "it is heard")


async def test_a_look_that_is_asked_for_reads_what_is_news(far):
    await look_rarely(far.executor)
    events = await end_one(far)
    await far.executor.launch([launch_of("two")])
    await eventually(lambda: len(far.engine.jobs) == 2, "a pass without news")
    assert far.reports == []
    far.executor.look()
    await eventually(lambda: far.reports == events, "it is heard")


async def test_news_that_the_database_did_not_tell_are_read_again_soon(far):
    await look_rarely(far.executor)
    events = await end_one(far)

    async def fail() -> None:
        far.database.after.clear()
        raise StoreUnavailable("it is away for a moment")

    far.database.after["news_of_tickets"] = fail
    far.executor.look()
    await eventually(lambda: far.reports == events, "it is heard")
    assert not far.database.after


async def test_many_ends_that_are_acknowledged_are_forgotten_before_the_next_look(far, monkeypatch):
    monkeypatch.setattr(executor_module, "MOST_NOTED", 2)
    await look_rarely(far.executor)
    tokens = ["two", "three"]
    await far.executor.launch(list(map(launch_of, tokens)))
    await eventually(lambda: len(far.engine.jobs) == 2, "they are submitted")
    for token in tokens:
        await far.executor.kill(token, "a user")
    await eventually(lambda: len(far.reports) == 2, "they have ended")
    await far.executor.acknowledge(tokens[:1])
    assert await states(far.database) == ["ended", "ended"]
    await far.executor.acknowledge(tokens[1:])
    await eventually_true(far.database, lambda conn: not conn.scalars(sa.select(ticket.c.token)).all())


async def test_a_try_that_is_heard_directly_is_forgotten_without_being_read_as_news(far):
    await look_rarely(far.executor)
    await far.executor.launch([launch_of("two")])
    await eventually(lambda: far.engine.jobs, "it is submitted")
    proof, ended = far.engine.jobs[0].ticket.proof, Ended("two", "success", NOW, NOW)
    await far.database.write(claim_ticket, proof, **LIFE)
    await far.database.write(report_try, proof, ended)
    far.executor.hear([ended])
    await far.executor.acknowledge(["two"])
    heard = []
    far.database.on_note = lambda notes: heard.extend(row.token for row in notes["heard"])
    far.executor._interval = timedelta(seconds=0.02)
    far.executor._wakeup.set()
    await eventually_true(far.database, lambda conn: not conn.scalars(sa.select(ticket.c.token)).all())
    assert heard == []


async def test_each_look_at_all_tries_also_reads_the_news(far):
    """Also one that becomes due while the engine drops a job."""
    steps: list[str] = []
    clock = ShiftedClock()
    far.executor._clock = clock

    def noting(step: str) -> Any:
        async def note() -> None:
            steps.append(step)

        return note

    async def cancel(_engine_ids: Sequence[str]) -> None:
        clock.shift = 7200.0

    far.engine.cancel = cancel
    await look_rarely(far.executor)
    await far.executor.launch([launch_of("two")])
    await eventually(lambda: far.engine.jobs, "it is submitted")
    far.database.before |= {"news_of_tickets": noting("news"), "progress_of_tickets": noting("progress")}
    await far.executor.kill("two", "a user")
    await eventually(lambda: clock.shift, "its job is dropped")
    far.executor._wakeup.set()
    await eventually(lambda: "progress" in steps, "it has looked")
    assert steps == ["news", "progress"]


async def test_an_end_that_was_acknowledged_is_reported_again_while_it_is_awaited(far):
    await look_rarely(far.executor)
    began, ended = await end_one(far)
    far.executor.hear([began, ended])
    await far.executor.acknowledge(["one"])
    # A scheduler that has no end of a try launches it again.
    await far.executor.launch([launch_of("one")])
    far.executor.look()
    await eventually(lambda: far.reports[2:] == [began, ended], "it is heard again")
    await far.executor.acknowledge(["one"])
    assert (await far.executor.adopt([1])).ended == {"one"}
    assert far.reports[4:] == [ended]


async def test_an_engine_that_is_away_gets_the_same_tickets_later(far):
    far.engine.n_failures = 2
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it was submitted")
    (job,) = far.engine.jobs
    await far.database.write(claim_ticket, job.ticket.proof, **LIFE)


async def test_the_log_says_once_that_an_engine_takes_nothing_and_once_that_it_does(far, monkeypatch):
    monkeypatch.setattr(executor_module, "TAKES_NOTHING_SECONDS", 0.05)
    far.engine.later.update(("one", "two"))
    with capture_logs() as logs:
        await far.executor.launch([launch_of("one"), launch_of("two")])
        await eventually(lambda: logs, "the outage is in the log")
        n_calls = len(far.engine.calls)
        await eventually(lambda: len(far.engine.calls) > n_calls + 4, "it was called several times since")
        far.engine.rejected.add("three")
        await far.executor.launch([launch_of("three")])
        n_calls = len(far.engine.calls)
        await eventually(lambda: len(far.engine.calls) > n_calls + 4, "the rejected job was followed by others")
        assert len(logs) == 1
        far.engine.later.discard("one")
        await eventually(lambda: len(logs) > 1, "the end of the outage is in the log")
        n_calls = len(far.engine.calls)
        await eventually(lambda: len(far.engine.calls) > n_calls + 9, "the other job still waits")
    assert [(one["event"], one.get("reason")) for one in logs] == [
        ("engine.takes_no_jobs", "it is full"),
        ("engine.takes_jobs_again", None),
    ]


async def test_the_next_scheduler_goes_on_with_tickets_as_they_are(far):
    await far.executor.launch([launch_of(token) for token in ("one", "two", "three")])
    await eventually(lambda: len(far.engine.jobs) == 3, "they were submitted")
    one, two, three = (job.ticket for job in far.engine.jobs)
    await far.executor.close()
    far.reports.clear()

    def live(conn: sa.Connection) -> None:
        claim_ticket(conn, one.proof, **LIFE)
        report_try(conn, one.proof, Started("one", NOW, 1))
        report_try(conn, one.proof, Ended("one", "success", NOW, NOW))
        claim_ticket(conn, two.proof, **LIFE)
        request_kill(conn, "two", "a user")
        conn.execute(sa.update(ticket).where(ticket.c.token == "three").values(engine_id=""))

    await far.database.write(live)
    executor, held = await far.start()
    assert (held.ended, held.starting, held.running) == ({"one"}, {"two", "three"}, set())
    assert [type(event) for event in far.reports] == [Ended]
    # It may not have been submitted: another ticket is, and the first one is void.
    await eventually(lambda: executor.engine.jobs, "it is submitted again")
    (again,) = executor.engine.jobs
    assert again.ticket.token == "three"
    assert again.ticket.secret != three.secret
    assert again.former_digest == digest_of_secret(three.secret), "what it has left can be found"
    # An end that is acknowledged stays while a task instance waits for it: a run may be taken up again.
    await executor.acknowledge(["one"])
    await executor.kill("three", "a user")
    await eventually(lambda: len(far.reports) == 2, "three has ended")
    await executor.acknowledge(["three"])
    await eventually(lambda: not executor._to_forget, "they were to be forgotten")
    assert (await executor.adopt([1])).known == {"one", "two"}


async def test_a_ticket_is_submitted_again_only_after_a_takeover_of_its_open_run(far):
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it is submitted")
    await far.executor.close()
    asked = anyio.Event()

    async def note() -> None:
        asked.set()

    def set_epoch(conn: sa.Connection, epoch: int) -> None:
        conn.execute(sa.update(ticket).values(engine_id=""))
        conn.execute(sa.update(dag_run).values(lease_epoch=epoch))

    await far.database.write(set_epoch, 0)
    far.database.after["reissue"] = note
    executor, held = await far.start()
    assert held.starting == {"one"}
    await asked.wait()
    await far.database.write(set_epoch, 1)
    assert (await executor.adopt([1])).starting == {"one"}
    await eventually(lambda: executor.engine.jobs, "it is submitted again")
    assert (far.reports, executor.engine.tokens) == ([], ["one"])


async def test_a_try_whose_run_another_scheduler_has_taken_over_is_not_submitted(far):
    async def lose_the_run() -> None:
        far.database.before.clear()
        owner = {"scheduler_id": "other", "lease_epoch": 2}
        await far.database.inner.write(lambda conn: conn.execute(sa.update(dag_run).values(**owner)))

    far.database.before["add_tickets"] = lose_the_run
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.reports, "it is over here")
    assert [(end.token, end.cause) for end in far.reports] == [("one", "interrupted")]
    assert (far.engine.jobs, await states(far.database), far.executor.kept) == ([], [], frozenset())


async def test_an_answer_of_the_engine_outlasts_a_database_that_is_away(far):
    far.engine.rejected = {"bad"}
    far.database.before |= {"end_ticket": failing(), "note_tickets": failing()}
    await far.executor.launch([launch_of("bad"), launch_of("good")])
    await eventually(lambda: far.reports, "it has ended")
    (end,) = far.reports
    assert (end.token, end.reason, end.retry) == ("bad", "no such queue", False)
    await eventually_true(far.database, lambda conn: conn.scalar(ENGINE_IDS) == "job-1")
    assert far.engine.calls == [["bad", "good"]]


async def test_a_job_at_which_the_engine_fails_holds_up_no_other_and_says_why(far):
    far.engine.bad = {"t3"}
    tokens = [f"t{n}" for n in range(8)]
    await far.executor.launch(list(map(launch_of, tokens)))
    await eventually(lambda: len(far.engine.jobs) == 7, "the others are submitted")
    assert far.engine.calls[0] == tokens
    await eventually_true(far.database, lambda conn: conn.scalar(SIGHT_OF_T3))
    found = await rows(far.database)
    assert found["t3"].sight == "queued: Connection refused"
    assert found["t4"].sight in ("", "unknown"), "nothing was wrong with it"
    far.engine.bad = set()
    await eventually(lambda: "t3" in far.engine.tokens, "it is submitted again")
    await eventually_true(far.database, lambda conn: not conn.scalar(SIGHT_OF_T3))


async def test_an_engine_that_is_away_is_called_for_one_job_at_a_time(far):
    far.engine.n_failures = 10
    await far.executor.launch([launch_of(f"t{n}") for n in range(8)])
    await eventually(lambda: len(far.engine.jobs) == 8, "it is back")
    assert [len(tokens) for tokens in far.engine.calls[:10]] == [8, 4, 2, 1, 1, 1, 1, 1, 1, 1]
    assert sorted(far.engine.tokens) == [f"t{n}" for n in range(8)]


async def test_an_engine_that_goes_away_between_two_jobs_is_not_called_for_all_others(far, monkeypatch):
    monkeypatch.setattr("asynsched.executors.remote.executor.AT_ONCE", 1)
    await far.executor.close()
    executor, _ = await far.start()
    happened: list[str] = []

    async def answer() -> None:
        happened.append("failed" if 3 <= len([one for one in happened if one != "pass"]) < 13 else "taken")
        if happened[-1] == "failed":
            raise OSError("the broker is away")

    async def note_pass() -> None:
        happened.append("pass")

    executor.engine.before_answer, far.database.before["news_of_tickets"] = answer, note_pass
    tokens = [f"t{n}" for n in range(30)]
    await executor.launch(list(map(launch_of, tokens)))
    await eventually(lambda: len(executor.engine.jobs) == 30, "it is back")
    passes = [[one for one in found.split() if one == "failed"] for found in " ".join(happened).split("pass")]
    assert max(map(len, passes)) <= 2
    assert sorted(executor.engine.tokens) == sorted(tokens)


async def test_a_try_that_a_stop_has_handed_back_is_not_submitted(far):
    await far.executor.launch([launch_of("one")])
    await eventually_true(far.database, lambda conn: conn.scalar(ENGINE_IDS) == "job-1")
    await far.executor.close()
    await far.database.write(lambda conn: conn.execute(sa.update(ticket).values(engine_id="")))
    executor, _ = await far.start()

    async def stop() -> None:
        far.database.before.clear()
        await executor.drain(NOW)

    # It has to find out first whether a worker has claimed `one`.
    far.database.before["reissue"] = stop
    await executor.launch([launch_of("two")])
    await eventually(lambda: executor.engine.jobs, "the other one was submitted")
    assert executor.engine.tokens == ["one"]
    assert [(end.token, end.cause) for end in far.reports] == [("two", "interrupted")]
    assert (executor.kept, list(await rows(far.database))) == ({"one"}, ["one"])


async def test_a_try_goes_on_that_began_although_the_engine_reported_an_error(far):
    async def claim() -> None:
        far.engine.before_answer = nothing
        await far.database.write(claim_ticket, job_of(far.executor, "one").ticket.proof, **SHORT_LIFE)
        raise OSError("the answer is lost")

    far.engine.before_answer = claim
    await far.executor.launch([launch_of("one")])
    # Its worker is silent from then on.
    await eventually(lambda: far.reports, "it is given up")
    assert "has not renewed its lease" in far.reports[0].reason


async def test_a_try_that_begins_or_ends_while_the_engine_takes_it_is_not_submitted_again(far):
    async def live() -> None:
        far.engine.before_answer = nothing
        one, two = (job_of(far.executor, token).ticket.proof for token in ("one", "two"))

        def both(conn: sa.Connection) -> None:
            for proof in (one, two):
                claim_ticket(conn, proof, **LIFE)
                report_try(conn, proof, Started(proof.token, NOW, 1))
            report_try(conn, one, Ended("one", "success", NOW, NOW))

        await far.database.write(both)
        await far.executor.adopt([1])
        far.engine.later = {"one", "two"}

    far.engine.before_answer = live
    await far.executor.launch([launch_of("one"), launch_of("two")])
    await eventually(lambda: len(far.reports) == 3, "one has ended")
    await far.executor.launch([launch_of("three")])
    await eventually(lambda: "three" in far.engine.tokens, "the next one is submitted")
    assert far.engine.calls == [["one", "two"], ["three"]]
    assert [type(event) for event in far.reports] == [Started, Ended, Started]


async def test_a_job_is_given_up_that_runs_without_a_claim_whatever_its_engine_says_of_it(far):
    said = iter(range(1_000_000))
    far.engine.sights = lambda: {"job-1": Sight("running", f"its image is loaded by {next(said)} bytes")}
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.reports, "it is given up")
    assert "no worker has claimed the try" in far.reports[0].reason


async def test_the_engine_is_asked_once_about_all_tries_that_are_lost_together(far, monkeypatch):
    def lost_once_claimed(seen: Seen, claim_timeout: float) -> GivenUp | None:
        return GivenUp("its worker is silent", "machine") if seen.state == CLAIMED else None

    monkeypatch.setattr("asynsched.executors.remote.executor.verdict", lost_once_claimed)
    await far.executor.launch([launch_of("one"), launch_of("two")])
    await eventually(lambda: len(far.engine.jobs) == 2, "they are submitted")
    far.engine.sights = lambda: {name: Sight("gone", f"{name} had no memory") for name in ("job-1", "job-2")}
    far.engine.looks.clear()

    def claim(conn: sa.Connection) -> None:
        for job in far.engine.jobs:
            claim_ticket(conn, job.ticket.proof, **LIFE)

    await far.database.write(claim)
    await eventually(lambda: sum(isinstance(event, Ended) for event in far.reports) == 2, "they are lost")
    assert far.engine.looks[-1] == ["job-1", "job-2"]
    assert {event.token: event.reason for event in far.reports if isinstance(event, Ended)} == {
        "one": "its worker is silent: job-1 had no memory", "two": "its worker is silent: job-2 had no memory"
    }  # fmt: skip


async def test_a_silent_engine_does_not_put_off_the_end_of_a_lost_try(far):
    await far.executor.launch([launch_of("one")])
    await eventually(lambda: far.engine.jobs, "it is submitted")
    await far.database.write(claim_ticket, far.engine.jobs[0].ticket.proof, **SHORT_LIFE)

    async def stay_silent() -> None:
        await anyio.sleep(0.1)  # longer than the looks that may be missed, at this interval
        raise TimeoutError

    far.engine.before_answer = stay_silent
    await far.executor.launch([launch_of("two")])
    await eventually(lambda: far.reports, "it is given up")
    assert "its worker has not renewed its lease" in far.reports[0].reason


async def test_tries_are_killed_although_the_database_or_the_engine_fails_at_one_of_them(far):
    tokens = [f"t{n}" for n in range(4)]
    await far.executor.launch(list(map(launch_of, tokens)))
    await eventually_true(far.database, lambda conn: conn.scalar(ENGINE_IDS) == "job-4")
    far.engine.bad = {"job-2"}
    far.database.fails_for = "t0"
    for token in tokens:
        await far.executor.kill(token, "a user")
    await eventually(lambda: len(far.reports) == 3, "the others have ended")
    await eventually(lambda: len(far.engine.cancelled) == 2, "and their jobs are cancelled")
    assert sorted(far.engine.cancelled) == ["job-3", "job-4"]
    far.database.fails_for = ""
    await eventually(lambda: len(far.reports) == 4, "the last one has ended")


async def test_jobs_of_killed_tries_are_cancelled_after_an_outage_of_the_engine(far):
    tokens = [f"t{n}" for n in range(4)]
    await far.executor.launch(list(map(launch_of, tokens)))
    await eventually_true(far.database, lambda conn: conn.scalar(ENGINE_IDS) == "job-4")
    far.engine.bad = {f"job-{n}" for n in range(1, 5)}
    for token in tokens:
        await far.executor.kill(token, "a user")
    await eventually(lambda: far.engine.n_cancels >= 6, "each was tried, together and alone")
    far.engine.bad = set()
    await eventually(lambda: len(far.engine.cancelled) == 4, "all are cancelled")


async def test_an_end_is_heard_while_many_tickets_wait_for_a_slow_engine(far, monkeypatch):
    monkeypatch.setattr("asynsched.executors.remote.executor.AT_ONCE", 1)
    executor, _ = await far.start()
    executor.engine.before_answer = lambda: anyio.sleep(0.03)
    n_tries = 400
    await executor.launch([launch_of(f"t{n}") for n in range(n_tries)])
    await eventually(lambda: executor.engine.jobs, "the first is submitted")
    first = executor.engine.jobs[0].ticket

    def end(conn: sa.Connection) -> None:
        claim_ticket(conn, first.proof, **LIFE)
        report_try(conn, first.proof, Ended(first.token, "success", NOW, NOW))

    await far.database.write(end)
    await eventually(lambda: far.reports, "its end is heard")
    assert len(executor.engine.jobs) < n_tries


async def test_the_next_ticket_goes_out_before_the_last_end_is_forgotten(far):
    await far.executor.launch([launch_of("two")])
    await eventually_true(far.database, lambda conn: conn.scalar(ENGINE_IDS) == "job-1")
    await far.executor.kill("two", "a user")
    await eventually(lambda: far.reports, "it has ended")
    n_submitted = []

    async def count() -> None:
        n_submitted.append(len(far.engine.jobs))

    far.database.before["note_tickets"] = count
    await far.executor.acknowledge(["two"])
    await far.executor.launch([launch_of("three")])
    await eventually_true(far.database, lambda conn: conn.scalar(ENGINE_IDS) == "job-2")
    assert list(await rows(far.database)) == ["three"]
    assert n_submitted[0] == 2
    assert len(far.reports) == 1


async def test_what_an_engine_says_of_many_jobs_is_stored_in_small_transactions(far, monkeypatch):
    monkeypatch.setattr("asynsched.executors.remote.executor.MOST_NOTED", 2)
    sizes = []
    far.database.on_note = lambda notes: sizes.append(max(len(notes["engine_ids"]), len(notes["sights"])))
    await far.executor.launch([launch_of(f"t{n}") for n in range(7)])
    await eventually_true(far.database, lambda conn: conn.scalar(ENGINE_IDS) == "job-7")
    assert (max(sizes), len({row.engine_id for row in (await rows(far.database)).values()})) == (2, 7)


async def test_the_loop_serves_others_between_two_looks_at_many_tries(far, monkeypatch):
    monkeypatch.setattr(slices, "AT_ONCE", 3)
    in_a_turn: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def counted(seen: Seen, claim_timeout: float) -> None:
        in_a_turn["judged"] += 1

    def sight_of(engine_id: str, default: Sight) -> Sight:
        in_a_turn["seen"] += 1
        return default

    async def count() -> None:
        nonlocal most
        while True:
            await anyio.lowlevel.checkpoint()
            most |= in_a_turn
            in_a_turn.clear()

    monkeypatch.setattr("asynsched.executors.remote.executor.verdict", counted)
    executor, _ = await far.start()
    executor.engine.sights = lambda: SimpleNamespace(get=sight_of)
    async with anyio.create_task_group() as beside:
        beside.start_soon(count)
        await executor.launch([launch_of(f"t{n}") for n in range(30)])
        await eventually_true(far.database, lambda conn: conn.scalar(N_TAKEN) == 30)
        most.clear()
        await eventually(lambda: most.keys() == {"judged", "seen"}, "it has looked at tries and jobs")
        beside.cancel_scope.cancel()
    assert max(most.values()) <= 3, most
