"""Bugs that are planted on purpose where tasks run on other machines."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa
from anyio.to_thread import run_sync

from asynsched.executors.base import Held
from asynsched.executors.remote import executor
from asynsched.executors.remote.executor import RemoteExecutor
from asynsched.executors.remote.verdicts import GivenUp
from asynsched.protocol.worker_messages import Renewal, Report
from asynsched.store import tickets
from asynsched.store.schema import ticket
from asynsched.web import workers
from asynsched.worker import agent
from asynsched.worker.agent import Agent
from asynsched.worker.schedulers import Refused, Unreachable
from asynsched.worker.tickets import TicketFolder
from tests.faults.simulated.bug import Bug, Change
from tests.faults.simulated.conditions import Conditions
from tests.faults.simulated.elsewhere import WORKERS

# At the schedulers


def _unguarded_claim() -> list[Change]:
    claim = tickets.claim_ticket

    def claim_again(conn: Any, proof: Any, *, boot: str, **named: Any) -> Any:
        conn.execute(sa.update(ticket).where(ticket.c.token == proof.token).values(worker_boot=boot))
        return claim(conn, proof, boot=boot, **named)

    return [(workers, "claim_ticket", claim_again)]


def _renewal_of_the_given_up() -> list[Change]:
    def renew(conn: Any, proofs: Any, seconds: float) -> list[Renewal]:
        tokens = [proof.token for proof in proofs]
        once_more = sa.update(ticket).values(renewals=ticket.c.renewals + 1)
        conn.execute(once_more.where(ticket.c.token.in_(tokens)))
        return [Renewal(token, seconds) for token in tokens]

    return [(workers, "renew_tickets", renew)]


def _silent_kill() -> list[Change]:
    renew = tickets.renew_tickets

    def renew_only(*arguments: Any) -> list[Renewal]:
        found = renew(*arguments)
        return [one if not one.seconds else msgspec.structs.replace(one, end="") for one in found]

    return [(workers, "renew_tickets", renew_only)]


def _early_give_up() -> list[Change]:
    verdict = executor.verdict
    return [(executor, "verdict", lambda seen, *rest: verdict(replace(seen, gone_after=WORKERS.lease), *rest))]


def _unguarded_give_up() -> list[Change]:
    end = tickets.end_ticket

    def end_in_any_state(conn: Any, ended: Any, **_: Any) -> Any:
        state = conn.scalar(sa.select(ticket.c.state).where(ticket.c.token == ended.token))
        return end(conn, ended, before=state or "")

    end_in_any_state.__name__ = "end_ticket"
    return [(executor, "end_ticket", end_in_any_state)]


def _end_before_takeover() -> list[Change]:
    reissue = RemoteExecutor._reissue

    async def reissue_or_end(self: Any, unsure: Any) -> None:
        await reissue(self, unsure)
        for one in [one for one in unsure if self._is_new(one) and not one.secret]:
            self._over(self._end_of(one.launch.token, GivenUp("it is not ours", "interrupted")))

    return [(RemoteExecutor, "_reissue", reissue_or_end)]


def _same_secret() -> list[Change]:
    launch = RemoteExecutor.launch

    async def launch_with_derived(self: Any, launches: Any) -> None:
        await launch(self, launches)
        for one in launches:
            if (found := self._tries.get(one.token)) is not None and found.ticket == "none":
                found.secret = 2 * one.token

    async def derive(self: Any, unsure: Any) -> None:
        for one in unsure:
            one.secret = 2 * one.launch.token

    return [(RemoteExecutor, "launch", launch_with_derived), (RemoteExecutor, "_reissue", derive)]


def _forgotten_tickets() -> list[Change]:
    return [(RemoteExecutor, "_take", lambda *_: Held())]


# At the workers


def _claim_of_another_life() -> list[Change]:
    life_of = agent.life_of

    class OneBoot:
        def boot(self) -> str:
            return "any"

    return [(agent, "life_of", lambda home, _: life_of(home, OneBoot()))]


def _end_reported_once() -> list[Change]:
    async def send_once(self: Any, held: Any, event: Any, started: Any = None) -> bool:
        report = Report(held.ticket.proof, event, started)
        with suppress(Refused, Unreachable):
            await self._schedulers.send(held.ticket.addresses, "/report", report, type(None))
        return True

    return [(Agent, "_send", send_once)]


def _early_acknowledgement() -> list[Change]:
    end = Agent._end

    async def forget_first(self: Any, held: Any, *rest: Any) -> None:
        await run_sync(self._folder.remove, held.ticket.token)
        await self._executor.acknowledge([held.ticket.token])
        await end(self, held, *rest)

    return [(Agent, "_end", forget_first)]


def _late_note() -> list[Change]:
    keep = TicketFolder.keep

    def keep_claimed(self: Any, kept: Any) -> None:
        if kept.terms is not None:
            keep(self, kept)

    return [(TicketFolder, "keep", keep_claimed)]


def _elsewhere(*faults: str, **more: Any) -> Conditions:
    return Conditions(faults, is_remote=True, **more)


BUGS_ELSEWHERE: dict[str, Bug] = {
    "unguarded-claim": Bug(
        "A worker may claim a try that another one has claimed.", _unguarded_claim, _elsewhere("ticket_twice")
    ),
    "claim-of-another-life": Bug(
        "A worker goes on with its claims after its machine has restarted, and has forgotten which tries have begun.",
        _claim_of_another_life,
        _elsewhere("worker_power_cut"),
    ),
    "renewal-of-the-given-up": Bug(
        "A try that was given up may renew its lease.", _renewal_of_the_given_up, _elsewhere("stands_still")
    ),
    "silent-kill": Bug("A worker does not hear which tries to end.", _silent_kill, _elsewhere("slow", people="cancel")),
    "early-give-up": Bug(
        "A try is given up when its lease is over, and not only after the time that its end takes.",
        _early_give_up,
        _elsewhere("partition", "worker_stopped"),
    ),
    "unguarded-give-up": Bug(
        "A try is given up as never claimed when a worker has just claimed it.",
        _unguarded_give_up,
        _elsewhere("ticket_lost", "engine_forgets", "ticket_twice"),
    ),
    "same-secret": Bug(
        "A ticket that is submitted again after a restart has the same secret.",
        _same_secret,
        _elsewhere("crash_anywhere", "engine_failure"),
    ),
    "forgotten-tickets": Bug(
        "Who takes over runs does not take over their tickets.",
        _forgotten_tickets,
        _elsewhere("crash_after", n_sites=1),
    ),
    "end-reported-once": Bug(
        "A worker reports the end of a try once, whether it is stored or not.",
        _end_reported_once,
        _elsewhere("lost_request", "partition"),
    ),
    "early-acknowledgement-elsewhere": Bug(
        "A worker forgets a try before its end is stored.",
        _early_acknowledgement,
        _elsewhere("worker_death", "partition", "lost_request"),
    ),
    "end-before-takeover": Bug(
        "A scheduler ends tries of its last life whose runs it has not taken over yet.",
        _end_before_takeover,
        _elsewhere("crash_before", "worker_death", crashes_at=frozenset({"news_of_tickets"}), n_sites=1),
    ),
    "late-note": Bug(
        "A worker notes a ticket after the claim, so its next agent does not know the try.",
        _late_note,
        _elsewhere("worker_death", "late_answer"),
    ),
}
