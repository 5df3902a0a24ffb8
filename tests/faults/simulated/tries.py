"""The simulated process of one try: of a task, or of callbacks."""

from datetime import timedelta
from typing import Any

import msgspec

from asynsched.protocol.messages import Ended, Launch, Reply, Request, Started
from tests.faults.simulated.user_code import Plan


class SimulatedTry:
    """One process: it gets ready, runs user code, and ends by itself, by a kill, or with its keeper.

    Attributes:
        started: The report that user code began; None before that.
        questions: Its requests that were not answered yet: one at most.
    """

    def __init__(self, world: Any, keeper: Any, launch: Launch) -> None:
        self._world = world
        self._keeper = keeper
        self.launch = launch
        self.plan: Plan = world.plan_of(launch)
        self.started: Started | None = None
        self.questions: dict[int, Request] = {}
        self._ending: tuple[str, str] | None = None
        self._execution: Any = None
        self._is_over = False

    def get_ready(self) -> None:
        """Begin its process some time later."""
        self._keeper.later(self._world.chance.latency(), self._begin)

    @property
    def is_ending(self) -> bool:
        """Whether it was told to end."""
        return self._ending is not None

    def end(self, reason: str, cause: str, grace: float) -> None:
        """SIGTERM, and SIGKILL when the grace is over."""
        if self._is_over:
            return
        is_first = self._ending is None
        self._ending = self._ending or (reason, cause)
        if self.started is None:
            self._gone(*self._ending)
        elif is_first:
            self._keeper.later(self._world.chance.between(0, grace), self._killed)

    def die_with_keeper(self) -> None:
        """Kill it as its keeper dies, without a report."""
        self._over("killed")

    def answered(self, reply: Reply) -> None:
        """The scheduler has answered its question."""
        if self.questions.pop(reply.request_id, None) is not None:
            if reply.error:
                self._finish("failed", reply.error)
            else:
                self._go_on()

    def _begin(self) -> None:
        if self._is_over:
            return
        launch = self.launch
        self.started = Started(launch.token, self._keeper.clock.now(), 1)
        self._world.process_begins()
        if not launch.callback:
            self._execution = self._keeper.begin(launch)
            self._world.say("try", f"{launch.task_id}[{launch.map_index}] {launch.try_number} {launch.token} begins")
        if self._world.chance.happens("try_death"):
            self._keeper.later(self._world.chance.between(0, self.plan.duration), self._die)
        if not (self._world.climate.try_death and self._world.chance.happens("try_death")):
            self._keeper.report(self.started)
        if self.plan.pushes:
            self.questions[1] = Request(launch.token, 1, "xcom_push", {"key": "pushed", "value": launch.try_number})
            self._keeper.report(self.questions[1])
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._keeper.later(self.plan.duration, self._finish, self.plan.state, "as planned")

    def _die(self) -> None:
        if not self._is_over:
            self._gone("killed by signal 9 (SIGKILL)", "machine")

    def _killed(self) -> None:
        if not self._is_over and self._ending is not None:
            self._gone(*self._ending)

    def _gone(self, reason: str, cause: str) -> None:
        self._over("interrupted" if cause == "interrupted" else "killed" if cause == "machine" else "failed")
        started_at = None if self.started is None else self.started.started_at
        now = self._keeper.clock.now()
        self._keeper.ended(self, Ended(self.launch.token, "failed", now, started_at, reason, cause=cause))

    def _finish(self, state: Any, reason: str) -> None:
        if self._is_over or self.started is None:
            return
        plan, now = self.plan, self._keeper.clock.now()
        has_value = state == "success" and plan.value is not None
        ended = Ended(
            self.launch.token,
            state,
            now,
            self.started.started_at,
            reason if state == "failed" else "",
            return_value=msgspec.Raw(msgspec.json.encode(plan.value)) if has_value else msgspec.UNSET,
            result_length=len(plan.value) if has_value and isinstance(plan.value, list) else -1 if has_value else None,
            decision=plan.decision if state == "success" else None,
            reschedule_at=now + timedelta(seconds=plan.reschedule_after or 0) if state == "up_for_reschedule" else None,
            deferral=plan.deferral if state == "deferred" else None,
            outlet_events=plan.outlet_events if state == "success" else (),
        )
        self._over(state, ended)
        self._keeper.ended(self, ended)

    def _over(self, end: Any, said: Ended | None = None) -> None:
        self._is_over = True
        launch = self.launch
        if self._execution is not None:
            self._world.say("try", f"{launch.task_id}[{launch.map_index}] {launch.try_number} {launch.token} {end}")
            self._world.ledger.end(self._execution, end, said, self._world.clock.monotonic())
        elif launch.callback:
            run = launch.run
            key = (run.dag_id, run.run_id, launch.task_id, launch.map_index, str(launch.callback["event"]))
            self._world.ledger.callbacks[key].append(end)
