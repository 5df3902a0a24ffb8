"""Tickets of tries on other machines: a try starts once and ends once, whatever is delivered or answered twice."""

import msgspec
import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from asynsched.clock import new_token
from asynsched.errors import NotFound, TicketRefused
from asynsched.executors.tokens import new_callback_token
from asynsched.protocol.messages import CodeVersion, Ended, Launch, RunContext, Started
from asynsched.protocol.worker_messages import Proof, Renewal, WorkerTerms
from asynsched.store.runs.callbacks import finish_callback, next_callbacks, running_callbacks, take_callback
from asynsched.store.runs.dag_runs import insert_run
from asynsched.store.runs.transitions import Batch, apply
from asynsched.store.schema import CallbackRequest, callback_request, dag_run
from asynsched.store.tickets import (
    GONE,
    Added,
    Whereabouts,
    add_tickets,
    claim_ticket,
    digest_of_secret,
    drop_news,
    end_ticket,
    find_ticket,
    forget_left_tickets,
    forget_tickets,
    news_of_tickets,
    note_tickets,
    progress_of_tickets,
    reissue,
    renew_tickets,
    report_try,
    request_kill,
    set_engine_ids,
    tickets_of_runs,
    tickets_of_scheduler,
    whereabouts,
)
from tests.store.test_runs import NOW, new_run, task

TERMS = WorkerTerms(30.0, 5.0, 10.0, 5.0, 30.0, 1000, "UTC", "ours", {})
OURS = {"executor": "far", "owner": "me", "epoch": 1, "now": NOW}
LIFE = {"worker": "w1", "boot": "life", "terms": TERMS, "log_start": 7}


def launch_of(token: str) -> Launch:
    run = RunContext("d", "r1", "manual", NOW)
    return Launch(token, f"task_{token}", -1, 1, 0, run, CodeVersion("v", "/dags"), f"{token}.log")


@pytest.fixture
async def proofs(database) -> list[Proof]:
    """The proofs of two submitted tries, of which `one` is awaited by a task instance."""
    proofs = [Proof(token, new_token()) for token in ("one", "two")]
    launches = [launch_of(proof.token) for proof in proofs]
    digests = {proof.token: digest_of_secret(proof.secret) for proof in proofs}

    def prepare(conn):
        run = insert_run(conn, new_run(logical_date=None))
        conn.execute(sa.update(dag_run).values(scheduler_id="me", lease_epoch=1, state="running"))
        apply(conn, Batch(1, new_tasks=[task(run, "a", "running", try_number=1, token="one")]))
        return add_tickets(conn, launches, digests, **OURS)

    both = frozenset({"one", "two"})
    assert await database.write(prepare) == Added(own=both, lost=frozenset())
    # The answer was lost, so it is done again; and somebody else does it late, with a secret of its own.
    assert await database.write(add_tickets, launches, digests, **OURS) == Added(own=both, lost=frozenset())
    others = dict.fromkeys(digests, digest_of_secret("other"))
    assert await database.write(add_tickets, launches, others, **OURS) == Added(frozenset(), frozenset())
    return proofs


@pytest.mark.parametrize("change", [{"scheduler_id": "other", "lease_epoch": 2}, {"lease_epoch": 2}])
async def test_a_scheduler_whose_lease_is_over_adds_no_ticket(database, proofs, change):
    await database.write(lambda conn: conn.execute(sa.update(dag_run).values(**change)))
    gone = msgspec.structs.replace(launch_of("three"), run=RunContext("d", "deleted", "manual", NOW))
    launches = [launch_of("two"), launch_of("three"), gone]
    digests = {token: digest_of_secret(token) for token in ("two", "three")}
    added = await database.write(add_tickets, launches, digests, **OURS)
    assert added == Added(own=frozenset(), lost=frozenset({"two", "three"}))
    owner = change.get("scheduler_id", "me")
    assert len(await database.read(tickets_of_runs, [1], "far", owner)) == len(proofs)


async def test_one_worker_claims_a_try_and_its_end_is_stored_once(database, proofs):
    one, two = proofs
    row = await database.write(claim_ticket, one, **LIFE)
    assert msgspec.json.decode(row.launch, type=Launch) == launch_of("one")
    again = await database.write(claim_ticket, one, **(LIFE | {"log_start": 99}))
    assert (again.log_start, again.worker) == (7, "w1"), "the same life of the worker gets the same answer"
    with pytest.raises(TicketRefused, match="the worker w1 has claimed the try"):
        await database.write(claim_ticket, one, **(LIFE | {"boot": "another"}))
    assert await database.write(report_try, one, Started("one", NOW, 1))
    assert not await database.write(report_try, one, Started("one", NOW, 1))
    (news,) = await database.read(news_of_tickets, "me", "far")
    assert await database.write(report_try, one, Ended("one", "success", NOW))
    await database.write(drop_news, [news])
    (news,) = await database.read(news_of_tickets, "me", "far")
    assert news.state == "ended", "what came after the news were read is news still"
    await database.write(drop_news, [news])
    assert await database.read(news_of_tickets, "me", "far") == []
    assert not await database.write(report_try, one, Ended("one", "failed", NOW)), "a late end changes nothing"
    ended = await database.write(end_ticket, Ended("one", "failed", NOW), before="claimed", renewals=2)
    assert ended == Ended("one", "success", NOW), "nor does giving the try up"
    with pytest.raises(TicketRefused, match="over"):
        await database.write(claim_ticket, one, **LIFE)
    with pytest.raises(TicketRefused, match="no worker has claimed"):
        await database.write(report_try, two, Ended("two", "success", NOW))
    # A task instance waits for the end of `one` until it is stored.
    await database.write(forget_tickets, ["one", "two"])
    assert [row.token for row in await database.read(tickets_of_scheduler, "me", "far")] == ["one"]
    assert await database.read(tickets_of_scheduler, "other", "far") == []


async def test_the_ticket_of_a_callback_belongs_to_the_scheduler_that_has_begun_it(database, proofs):
    proof = Proof(new_callback_token(), new_token())
    launch = replace(launch_of(proof.token), callback={"event": "on_failure"})
    given = [launch], {proof.token: digest_of_secret(proof.secret)}

    def begin(conn):
        conn.execute(sa.update(dag_run).values(scheduler_id="other", lease_epoch=2))
        request = CallbackRequest(dag_run_id=1, event="on_failure", created_at=NOW)
        conn.execute(callback_request.insert(), {**msgspec.structs.asdict(request), "id": 1})
        (waiting,) = next_callbacks(conn, "me", 10)
        assert take_callback(conn, waiting, proof.token, "me")
        return add_tickets(conn, *given, **OURS)

    assert await database.write(begin) == Added(own=frozenset({proof.token}), lost=frozenset())
    lost = await database.write(add_tickets, *given, **(OURS | {"owner": "other", "epoch": 2}))
    assert lost == Added(own=frozenset(), lost=frozenset({proof.token})), "it owns the run, not the callback"
    assert await database.write(reissue, launch, "digest", owner="other", epoch=2) == "not ours"
    assert [row.token for row in await database.read(tickets_of_scheduler, "me", "far")] == [proof.token]
    assert [row.token for row in await database.read(tickets_of_scheduler, "other", "far")] == ["one", "two"]
    assert [row.token for row in await database.read(tickets_of_runs, [1], "far", "me")] == [proof.token]
    assert [row.token for row in await database.read(tickets_of_runs, [1], "far", "other")] == ["one", "two"]
    await database.write(claim_ticket, proof, **LIFE)
    await database.write(report_try, proof, Started(proof.token, NOW, 1))
    assert [row.token for row in await database.read(news_of_tickets, "me", "far")] == [proof.token]
    assert await database.read(news_of_tickets, "other", "far") == []
    await database.write(lambda conn: conn.execute(sa.update(dag_run).values(state="failed", scheduler_id=None)))
    await database.write(forget_left_tickets, "far")
    assert [row.token for row in await database.read(tickets_of_scheduler, "me", "far")] == [proof.token]

    again = Proof(new_callback_token(), new_token())

    def begin_again(conn):
        (begun,) = running_callbacks(conn, "me")
        assert take_callback(conn, begun, again.token, "third")
        digests = {again.token: digest_of_secret(again.secret)}
        return add_tickets(conn, [replace(launch, token=again.token)], digests, **(OURS | {"owner": "third"}))

    def give_up(conn):
        (begun,) = running_callbacks(conn, "third")
        finish_callback(conn, begun, again.token, "failed")

    await database.write(begin_again)
    await database.write(claim_ticket, again, **LIFE)
    assert await database.write(renew_tickets, [proof], 40.0) == [Renewal(proof.token, end=GONE)]
    await database.write(give_up)
    assert await database.write(renew_tickets, [again], 40.0) == [Renewal(again.token, end=GONE)]


@pytest.mark.parametrize("state", ["submitted", "claimed", "ended"])
async def test_tickets_of_an_ended_run_are_forgotten_of_any_owner(database, proofs, state):
    if state != "submitted":
        await database.write(claim_ticket, proofs[1], **LIFE)
    if state == "ended":
        await database.write(end_ticket, Ended("two", "failed", NOW), before="claimed")
    assert not await database.write(forget_left_tickets, "far")
    assert len(await database.read(tickets_of_scheduler, "me", "far")) == 2, "the run goes on"
    await database.write(lambda conn: conn.execute(sa.update(dag_run).values(state="queued")))
    await database.write(forget_left_tickets, "far")
    left = [row.token for row in await database.read(tickets_of_scheduler, "me", "far")]
    assert left == (["one"] if state == "ended" else ["one", "two"]), "it was cleared; no other try may begin too early"
    await database.write(lambda conn: conn.execute(sa.update(dag_run).values(state="success")))
    await database.write(forget_left_tickets, "near")
    await database.write(forget_left_tickets, "far")
    left = await database.read(tickets_of_scheduler, "me", "far")
    assert [row.token for row in left] == ["one"], "its end is not stored"
    with pytest.raises(NotFound):
        await database.write(claim_ticket, proofs[1], **LIFE)
    assert await database.write(renew_tickets, [proofs[1]], 40.0) == [Renewal("two", end=GONE)]


async def test_a_try_that_was_given_up_neither_starts_nor_keeps_its_lease(database, proofs):
    one, two = proofs
    given_up = Ended("two", "failed", NOW, reason="the engine has lost it", cause="interrupted")
    assert await database.write(end_ticket, given_up, before="claimed", renewals=0) is None, "it is not claimed"
    assert await database.write(end_ticket, given_up, before="submitted") == given_up
    with pytest.raises(TicketRefused):
        await database.write(claim_ticket, two, **LIFE)
    await database.write(claim_ticket, one, **LIFE)
    assert await database.write(end_ticket, Ended("one", "failed", NOW), before="submitted") is None
    (seen,) = await database.read(progress_of_tickets, ["one", "unknown"])
    assert seen == ("one", "claimed", 1, 45.0)
    renewals = await database.write(renew_tickets, [two, one, Proof("one", "wrong"), Proof("none", "x")], 40.0)
    # A message about one try under two secrets proves nothing.
    assert renewals == [Renewal(token, end=GONE) for token in ("two", "one", "one", "none")]
    assert await database.write(renew_tickets, [one], 40.0) == [Renewal("one", 40.0)]
    lost = Ended("one", "failed", NOW, reason="its worker is gone", cause="machine")
    assert await database.write(end_ticket, lost, before="claimed", renewals=seen.renewals) is None, "it has renewed"
    await database.write(request_kill, "one", "a user")
    assert await database.write(renew_tickets, [one], 40.0) == [Renewal("one", 40.0, "a user")]
    again = await database.write(claim_ticket, one, **LIFE)
    assert again.kill_reason == "a user", "only a worker that repeats its claim can say that nothing has begun"
    with pytest.raises(TicketRefused):
        await database.write(claim_ticket, one, **(LIFE | {"boot": "another"}))
    assert await database.write(end_ticket, lost, before="claimed", renewals=again.renewals) == lost
    assert await database.write(renew_tickets, [one], 40.0) == [Renewal("one", end=GONE)]


async def test_what_is_known_of_tickets_is_stored_together(database, proofs):
    for proof in proofs:
        await database.write(claim_ticket, proof, **LIFE)
        await database.write(report_try, proof, Ended(proof.token, "success", NOW))
    heard = await database.read(news_of_tickets, "me", "far")
    assert [row.token for row in heard] == ["one", "two"]
    known = {"heard": heard, "engine_ids": {"two": "job-2", "one": "job-1"}, "sights": {"one": "queued: \0"}}
    await database.write(note_tickets, forgotten=["two"], **known)
    (row,) = await database.read(tickets_of_scheduler, "me", "far")
    assert (row.token, row.engine_id, row.sight, row.has_news) == ("one", "job-1", "queued: \ufffd", False)
    await database.write(note_tickets, forgotten=["two"])  # the answer was lost


async def test_a_ticket_with_a_new_secret_voids_the_old_one(database, proofs):
    one, two = proofs
    await database.write(set_engine_ids, {"one": "job-1"})
    owner = {"owner": "me", "epoch": 1}
    for another in ({"owner": "you"}, {"epoch": 2}):
        assert await database.write(reissue, launch_of("one"), digest_of_secret("new"), **owner | another) == "not ours"
    assert await database.write(reissue, launch_of("one"), digest_of_secret("new"), **owner) == "new"
    for wrong in (one, Proof("none", one.secret), Proof("one", ""), Proof("one", two.secret), Proof("on\0e", "\ud800")):
        with pytest.raises(NotFound, match="no ticket"):
            await database.write(claim_ticket, wrong, **LIFE)
        with pytest.raises(NotFound):
            await database.read(find_ticket, wrong)
        assert one.secret not in repr(wrong)
    assert (await database.write(claim_ticket, Proof("one", "new"), **LIFE)).engine_id == ""
    assert await database.write(reissue, launch_of("one"), digest_of_secret("newer"), **owner) == "claimed"
    (run,) = {row.dag_run_id for row in await database.read(tickets_of_runs, [1], "far", "me")}
    assert await database.read(tickets_of_runs, [run], "near", "me") == []


async def test_a_lease_that_a_worker_may_count_on_is_not_made_shorter(database, proofs):
    one = proofs[0]
    await database.write(claim_ticket, one, **LIFE)
    await database.write(claim_ticket, one, **(LIFE | {"terms": replace(TERMS, lease_seconds=1.0, grace=1.0)}))
    assert (await database.read(progress_of_tickets, ["one"]))[0].gone_after == 45.0, "the answer may be lost"
    for seconds, granted in ((20.0, 30.0), (40.0, 40.0), (20.0, 40.0)):
        assert await database.write(renew_tickets, [one], seconds) == [Renewal("one", granted)]
        assert (await database.read(progress_of_tickets, ["one"]))[0].gone_after == granted + 15.0


async def test_what_people_read_of_a_try_says_whether_its_engine_has_taken_it(database, proofs):
    sights = {"one": "queued: Connection refused", "two": "queued: on the queue gpu"}
    await database.write(note_tickets, engine_ids={"two": "job-2"}, sights=sights)
    assert await database.read(whereabouts) == {
        "one": Whereabouts("far", "submitted", False, "queued: Connection refused", ""),
        "two": Whereabouts("far", "submitted", True, "queued: on the queue gpu", ""),
    }
    # A scheduler that takes it over submits it again: what the engine has said of the earlier job is void.
    await database.write(reissue, launch_of("two"), digest_of_secret("new"), owner="me", epoch=1)
    assert (await database.read(whereabouts))["two"] == Whereabouts("far", "submitted", False, "", "")
