"""Queries of `ticket`: tries and callbacks on other machines, and the one place that changes their states.

            add                claim                 end
    (none) ─────▶ submitted ─────────▶ claimed ─────────────▶ ended ──forget──▶ (none)
                      │                                         ▲
                      └──────────── end: never started ─────────┘

A try starts only by a claim, and every change is guarded by the state before. So a ticket that an engine delivers twice
starts one try; and a try that was given up, as never started or as lost, can neither start nor hold its lease any more.
The answer to any of these changes may be lost: repeating it changes nothing, and returns the same.

A ticket belongs to the scheduler that owns its run at the moment; that of a callback, which may run after its run has
ended, to the scheduler that has begun the callback or taken it over.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from asynsched.errors import NotFound, TicketRefused
from asynsched.protocol.messages import Ended, Launch, Started
from asynsched.protocol.worker_messages import Proof, Renewal, WorkerTerms
from asynsched.states import FINISHED_RUN_STATES, SLOT_TASK_STATES, DagRunState
from asynsched.store.rows import as_struct, fetch, fetch_in, portions, select_in, storable
from asynsched.store.runs.task_instances import IS_UNDER_WAY
from asynsched.store.schema import TicketRow, callback_request, dag_run, task_instance, ticket
from asynsched.store.statements import insert_ignoring

SUBMITTED, CLAIMED, ENDED = "submitted", "claimed", "ended"
Reissued = Literal["new", "claimed", "not ours"]
MOST_NEWS = 500
"""Tickets whose news are read at once."""
GONE = "the scheduler no longer waits for it"

_token, _state = ticket.c.token, ticket.c.state
_OF_TOKEN = _token == sa.bindparam("key")
_ONE = sa.select(ticket).where(_OF_TOKEN)
_LOCKED = _ONE.with_for_update()
_OWN_RUNS = (
    sa.select(dag_run.c.id, dag_run.c.dag_id, dag_run.c.run_id)
    .where(dag_run.c.scheduler_id == sa.bindparam("owner"), dag_run.c.lease_epoch == sa.bindparam("epoch"))
    .where(sa.tuple_(dag_run.c.dag_id, dag_run.c.run_id).in_(sa.bindparam("runs", expanding=True)))
    .order_by(dag_run.c.id)
    .with_for_update(key_share=True)
)
"""Runs of a scheduler, locked, so that another one that takes them over finds every ticket that was added before."""
_BEGUN = sa.select(callback_request.c.token).where(
    sa.text("callback_request.state = 'running'"), callback_request.c.token.is_not(None)
)
"""The tokens of all callbacks that run: few, and found by an index."""
_BEGUN_BY_OWNER = _BEGUN.where(callback_request.c.scheduler_id == sa.bindparam("owner"))
_OWN_CALLBACKS = _BEGUN_BY_OWNER.add_columns(callback_request.c.dag_run_id).where(
    callback_request.c.token.in_(sa.bindparam("tokens", expanding=True))
)
_RUNS_OF_CALLBACKS = (
    sa.select(dag_run.c.id)
    .where(dag_run.c.id.in_(_OWN_CALLBACKS.with_only_columns(callback_request.c.dag_run_id)))
    .order_by(dag_run.c.id)
    .with_for_update(read=True, key_share=True)
)
"""The runs to which the tickets of these callbacks refer, locked first: a deletion locks a run before its callbacks."""
_LOCKED_CALLBACKS = _OWN_CALLBACKS.order_by(callback_request.c.id).with_for_update(key_share=True)
"""Callbacks that a scheduler has begun, locked, so that another one that begins them again finds their tickets."""
_IS_OWN = _token.in_(_BEGUN_BY_OWNER) | (_token.not_in(_BEGUN) & (dag_run.c.scheduler_id == sa.bindparam("owner")))
_NEWS = (
    sa.select(ticket)
    .join(dag_run, dag_run.c.id == ticket.c.dag_run_id)
    .where(sa.text("ticket.has_news"), _IS_OWN, ticket.c.executor == sa.bindparam("executor"))
    .order_by(_token)
    .limit(MOST_NEWS)
)
_OF_OWNER = (
    sa.select(ticket)
    .join(dag_run, dag_run.c.id == ticket.c.dag_run_id)
    .where(_IS_OWN, ticket.c.executor == sa.bindparam("executor"))
    .order_by(_token)
)
_PROGRESS = sa.select(_token, _state, ticket.c.renewals, ticket.c.lease_seconds + ticket.c.end_seconds)
_AWAITED = sa.select(task_instance.c.token).where(
    IS_UNDER_WAY,
    task_instance.c.state.in_(sorted(SLOT_TASK_STATES)),
    task_instance.c.token.is_not(None),
)
_IS_LEFT = (_token.not_in(_AWAITED), _token.not_in(_BEGUN))
"""No task instance and no callback waits for it."""
_LEFT = (
    sa.select(_token)
    .join(dag_run, dag_run.c.id == ticket.c.dag_run_id)
    .where(ticket.c.executor == sa.bindparam("executor"))
    .where(
        dag_run.c.state.in_(sorted(FINISHED_RUN_STATES)) | ((dag_run.c.state == DagRunState.QUEUED) & (_state == ENDED))
    )
    .where(*_IS_LEFT)
    .order_by(_token)
    .limit(MOST_NEWS)
)


class Progress(NamedTuple):
    """How far a try is.

    Attributes:
        renewals: Rises with each renewal of its lease.
        gone_after: Seconds after a renewal at which it has ended if there was no other one, by the worker's clock.
    """

    token: str
    state: str
    renewals: int
    gone_after: float


def digest_of_secret(secret: str) -> str:
    """Return the stored digest of a ticket's secret, which is random and long."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


# By the scheduler that owns the run


class Added(NamedTuple):
    """Tokens of tries whose tickets were to be added.

    Attributes:
        own: Their tickets are those that were given.
        lost: Their runs, or callbacks, are not this scheduler's: gone, without an owner, or taken over.
    """

    own: frozenset[str]
    lost: frozenset[str]


def add_tickets(
    conn: Connection,
    launches: Sequence[Launch],
    digests: Mapping[str, str],
    *,
    executor: str,
    owner: str,
    epoch: int,
    now: datetime,
) -> Added:
    """Add tickets of tries, as far as a scheduler owns their runs, and of callbacks that it has begun.

    Args:
        digests: Those of their secrets, by token. A token that has a ticket with another secret keeps it, and is
            neither `own` nor `lost`.
        epoch: The epoch of the scheduler's lease.
    """
    run_ids = _own_run_ids(conn, launches, owner, epoch)
    rows = [
        TicketRow(
            token=launch.token, dag_run_id=run_ids[launch.token], executor=executor,
            digest=digests[launch.token], launch=msgspec.json.encode(launch), submitted_at=now,
        )
        for launch in sorted(launches, key=lambda launch: launch.token)
        if launch.token in run_ids
    ]  # fmt: skip
    if rows:
        conn.execute(insert_ignoring(conn, ticket), [msgspec.structs.asdict(row) for row in rows])
    stored = select_in(conn, sa.select(_token, ticket.c.digest), _token, [row.token for row in rows])
    own = frozenset(row.token for row in stored if row.digest == digests[row.token])
    return Added(own, frozenset(launch.token for launch in launches) - {row.token for row in rows})


def _own_run_ids(conn: Connection, launches: Sequence[Launch], owner: str, epoch: int) -> dict[str, int]:
    """Return the row ids of the runs of what a scheduler may start, by the tokens of the tries and callbacks."""
    tries = [launch for launch in launches if not launch.callback]
    names = sorted({(launch.run.dag_id, launch.run.run_id) for launch in tries})
    found = conn.execute(_OWN_RUNS, {"owner": owner, "epoch": epoch, "runs": names}) if names else ()
    runs = {(row.dag_id, row.run_id): row.id for row in found}
    own = {
        launch.token: runs[launch.run.dag_id, launch.run.run_id]
        for launch in tries
        if (launch.run.dag_id, launch.run.run_id) in runs
    }
    if tokens := [launch.token for launch in launches if launch.callback]:
        of_owner = {"owner": owner, "tokens": tokens}
        conn.execute(_RUNS_OF_CALLBACKS, of_owner)
        begun = conn.execute(_LOCKED_CALLBACKS, of_owner)
        own |= {row.token: row.dag_run_id for row in begun}
    return own


def note_tickets(
    conn: Connection,
    *,
    forgotten: Sequence[str] = (),
    heard: Sequence[TicketRow] = (),
    engine_ids: Mapping[str, str] | None = None,
    sights: Mapping[str, str] | None = None,
) -> None:
    """Store what a scheduler knows of tickets, in one transaction.

    Args:
        forgotten: Tokens, as for `forget_tickets`.
        heard: Tickets, as for `drop_news`.
        engine_ids: As for `set_engine_ids`.
        sights: As for `note_sights`.
    """
    # Every transaction locks tickets in the order of their tokens.
    _lock(conn, {*forgotten, *(row.token for row in heard), *(engine_ids or ()), *(sights or ())})
    set_engine_ids(conn, engine_ids or {})
    note_sights(conn, sights or {})
    drop_news(conn, heard)
    forget_tickets(conn, forgotten)


def set_engine_ids(conn: Connection, engine_ids: Mapping[str, str]) -> None:
    """Store the names that the engine has given to tickets, by their tokens."""
    _set_column(conn, "engine_id", engine_ids)


def note_sights(conn: Connection, sights: Mapping[str, str]) -> None:
    """Store how the engine sees the jobs of tickets, by their tokens."""
    _set_column(conn, "sight", {token: storable(sight) for token, sight in sights.items()})


def _set_column(conn: Connection, name: str, values: Mapping[str, str]) -> None:
    if values:
        change = sa.update(ticket).where(_OF_TOKEN).values({name: sa.bindparam("new")})
        conn.execute(change, [{"key": token, "new": value} for token, value in sorted(values.items())])


def reissue(conn: Connection, launch: Launch, digest: str, *, owner: str, epoch: int) -> Reissued:
    """Give a new secret to a ticket that no worker has claimed: its earlier copies are void.

    Only the scheduler that owns the run may, under this epoch of its lease: the tickets that it submits are valid.
    """
    if launch.token not in _own_run_ids(conn, [launch], owner, epoch):
        return "not ours"
    changed = sa.update(ticket).where(_OF_TOKEN, _state == SUBMITTED).values(digest=digest, engine_id="", sight="")
    return "new" if conn.execute(changed, {"key": launch.token}).rowcount else "claimed"


def end_ticket(conn: Connection, ended: Ended, *, before: str, renewals: int | None = None) -> Ended | None:
    """End a try that is in the state `before`, and return how it ended; None: it is in another state.

    Args:
        renewals: The number of renewals after which it is lost: it ends unless there was another one since.
    """
    row = _locked(conn, ended.token)
    if row is None:
        return None
    if row.state == ENDED:
        return _ended(row)
    if row.state != before or (renewals is not None and row.renewals != renewals):
        return None
    values = {"state": ENDED, "ended": msgspec.json.encode(ended), "has_news": False}
    conn.execute(sa.update(ticket).where(_OF_TOKEN).values(**values), {"key": ended.token})
    return ended


def request_kill(conn: Connection, token: str, reason: str) -> None:
    """Ask the worker of a claimed try to end it: the answer to the next renewal says so."""
    asked = sa.update(ticket).where(_OF_TOKEN, _state == CLAIMED, ticket.c.kill_reason == "")
    conn.execute(asked.values(kill_reason=storable(reason)), {"key": token})


def tickets_of_scheduler(conn: Connection, owner: str, executor: str) -> list[TicketRow]:
    """Return the tickets of an executor for the runs of a scheduler."""
    return fetch(conn, TicketRow, _OF_OWNER, {"owner": owner, "executor": executor})


def tickets_of_runs(conn: Connection, run_ids: Sequence[int], executor: str, owner: str) -> list[TicketRow]:
    """Return the tickets of an executor for some runs of a scheduler and their callbacks, by the runs' row ids."""
    query = sa.select(ticket).join(dag_run, dag_run.c.id == ticket.c.dag_run_id)
    own = query.where(ticket.c.executor == executor, _IS_OWN).params(owner=owner)
    return fetch_in(conn, TicketRow, own, ticket.c.dag_run_id, run_ids)


def news_of_tickets(conn: Connection, owner: str, executor: str) -> list[TicketRow]:
    """Return some tickets whose start or end their scheduler has not heard of."""
    return fetch(conn, TicketRow, _NEWS, {"owner": owner, "executor": executor})


def drop_news(conn: Connection, rows: Sequence[TicketRow]) -> None:
    """Note that the scheduler has heard of these tickets as they were read; a later end stays news."""
    for row in sorted(rows, key=lambda row: row.token):
        heard = sa.update(ticket).where(_OF_TOKEN, _state == row.state).values(has_news=False)
        conn.execute(heard, {"key": row.token})


class Whereabouts(NamedTuple):
    """Where a try on another machine is, for people: with an engine, or on a worker.

    Attributes:
        is_taken: Whether the engine has accepted its ticket; otherwise `sight` says why not.
        sight: How the engine sees its job: the state, and behind `: ` the reason; empty: it has not been asked.
    """

    executor: str
    state: str
    is_taken: bool
    sight: str
    worker: str


_WHEREABOUTS = sa.select(
    _token, ticket.c.executor, _state, ticket.c.engine_id != "", ticket.c.sight, ticket.c.worker
).where(_state != ENDED)


def whereabouts(conn: Connection) -> dict[str, Whereabouts]:
    """Return where the tries on other machines are that have not ended, by their tokens."""
    return {row.token: Whereabouts(*row[1:]) for row in conn.execute(_WHEREABOUTS)}


def progress_of_tickets(conn: Connection, tokens: Sequence[str]) -> list[Progress]:
    """Return how far these tries are, of those that have a ticket."""
    return [Progress._make(row) for row in select_in(conn, _PROGRESS, _token, tokens)]


def forget_tickets(conn: Connection, tokens: Sequence[str]) -> None:
    """Delete tickets whose ends are stored: those for which no task instance and no callback waits any more."""
    for some in portions(_lock(conn, tokens)):
        conn.execute(sa.delete(ticket).where(_token.in_(some), *_IS_LEFT))


def forget_left_tickets(conn: Connection, executor: str) -> bool:
    """Delete some tickets of an executor that a scheduler has left when it died after it had stored the end of a run.

    No scheduler owns such a run any more. Its tries, which a person may have ended, cannot be claimed then, and end
    with the next renewal. If the run was cleared meanwhile and waits to begin again, tries that have not ended keep
    their tickets, which keep other tries of their task instances from starting. Returns whether there may be others.
    """
    tokens = list(conn.scalars(_LEFT, {"executor": executor}))
    forget_tickets(conn, tokens)
    return len(tokens) == MOST_NEWS


# For workers


def find_ticket(conn: Connection, proof: Proof) -> TicketRow:
    """Return the ticket of a try. Raises NotFound if there is none, or its secret is another one."""
    return _proven(conn.execute(_ONE, {"key": storable(proof.token)}).first(), proof)


def claim_ticket(
    conn: Connection, proof: Proof, *, worker: str, boot: str, terms: WorkerTerms, log_start: int
) -> TicketRow:
    """Claim a try for a worker, and grant the first lease. The same worker in the same boot gets the same answer again.

    It does so, too, if the try is to be ended meanwhile: nothing has begun at a worker that repeats its claim, and only
    that worker can say so before the lease is over.

    Args:
        terms: Those that the worker is told.

    Raises:
        NotFound: There is no such ticket, or its secret is another one.
        TicketRefused: Another worker has claimed the try, or it is over.
    """
    row = _proven(conn.execute(_LOCKED, {"key": storable(proof.token)}).first(), proof)
    if row.state == ENDED:
        raise TicketRefused(f"the try is over: {GONE}")
    if row.state == CLAIMED and row.worker_boot != boot:
        raise TicketRefused(f"the worker {row.worker} has claimed the try")
    values: dict[str, Any] = {
        "renewals": row.renewals + 1,
        "lease_seconds": max(row.lease_seconds, terms.lease_seconds),
        "end_seconds": max(row.end_seconds, terms.end_seconds),
    }
    if row.state == SUBMITTED:
        values |= {"state": CLAIMED, "worker": storable(worker)[:250], "worker_boot": boot, "log_start": log_start}
    conn.execute(sa.update(ticket).where(_OF_TOKEN).values(**values), {"key": row.token})
    return msgspec.structs.replace(row, **values)


def renew_tickets(conn: Connection, proofs: Sequence[Proof], lease_seconds: float) -> list[Renewal]:
    """Renew the leases of tries, and say which are to be ended, in the order of the proofs.

    A lease never becomes shorter than those that were granted before: their worker counts on them until it has the
    answer, which may be lost.
    """
    of_token = {proof.token: proof for proof in proofs}
    known: dict[str, TicketRow] = {}
    for some in portions(sorted(map(storable, of_token))):
        locked = sa.select(ticket).where(_token.in_(some)).order_by(_token).with_for_update()
        known |= {row.token: as_struct(TicketRow, row) for row in conn.execute(locked)}
    renewed = [
        row.token for row in known.values() if row.state == CLAIMED and _is_proven(row.digest, of_token[row.token])
    ]
    for some in portions(renewed):
        longest = sa.case((ticket.c.lease_seconds > lease_seconds, ticket.c.lease_seconds), else_=lease_seconds)
        values = {"renewals": ticket.c.renewals + 1, "lease_seconds": longest}
        conn.execute(sa.update(ticket).where(_token.in_(some)).values(**values))
    return [
        Renewal(proof.token, max(lease_seconds, known[proof.token].lease_seconds), known[proof.token].kill_reason)
        if proof.token in renewed
        else Renewal(proof.token, end=GONE)
        for proof in proofs
    ]


def report_try(conn: Connection, proof: Proof, *events: Started | Ended) -> bool:
    """Store the start of a claimed try, its end, or both. Returns whether that is news: a try may be over already.

    Raises:
        NotFound: There is no such ticket, or its secret is another one.
        TicketRefused: No worker has claimed the try that is to end.
    """
    row = _proven(conn.execute(_LOCKED, {"key": storable(proof.token)}).first(), proof)
    values: dict[str, Any] = {}
    for event in events:
        if isinstance(event, Started):
            if row.state == CLAIMED and row.started is None:
                values |= {"started": msgspec.json.encode(event)}
        elif row.state == SUBMITTED:
            raise TicketRefused("no worker has claimed the try")
        elif row.state == CLAIMED:
            values |= {"state": ENDED, "ended": msgspec.json.encode(event)}
    if values:
        conn.execute(sa.update(ticket).where(_OF_TOKEN).values(**values, has_news=True), {"key": row.token})
    return bool(values)


def _lock(conn: Connection, tokens: Collection[str]) -> list[str]:
    """Lock tickets until this transaction ends. Returns the tokens of those that there are."""
    found: list[str] = []
    for some in portions(sorted(tokens)):
        found += conn.scalars(sa.select(_token).where(_token.in_(some)).order_by(_token).with_for_update())
    return found


def _locked(conn: Connection, token: str) -> TicketRow | None:
    row = conn.execute(_LOCKED, {"key": token}).first()
    return None if row is None else as_struct(TicketRow, row)


def _ended(row: TicketRow) -> Ended:
    assert row.ended is not None
    return msgspec.json.decode(row.ended, type=Ended)


def _proven(row: "sa.Row[Any] | None", proof: Proof) -> TicketRow:
    """Return a ticket. A wrong secret gets the answer of an unknown token. Raises NotFound."""
    if row is None or not _is_proven(row.digest, proof):
        raise NotFound("ticket", proof.token)
    return as_struct(TicketRow, row)


def _is_proven(digest: str, proof: Proof) -> bool:
    return hmac.compare_digest(digest, digest_of_secret(proof.secret))
