"""What one trigger host is to run, and what of it the host was told. No I/O, no clock."""

from collections.abc import Collection

import msgspec

from asynsched.protocol.messages import TriggerSpec, TriggerWork

MAX_STARTS = 200
"""Triggers that one answer may start."""
MAX_BYTES = 1_000_000
"""JSON of their arguments, after which the others wait for the next answer: each must fit into a frame."""


class HostWork:
    """The triggers that a host should run, told in steps.

    Each step has a number, and is repeated until the host's next question shows that it arrived. A host that asks with
    another session was told things by another scheduler: it is asked what it runs, and told the difference.

    Args:
        session: Names this memory; no other has the same name.
    """

    def __init__(self, session: str) -> None:
        self._session = session
        self._number = 0
        self._step: TriggerWork | None = None
        self._to_start: dict[str, TriggerSpec] = {}
        self._to_stop: dict[str, None] = {}
        self.wanted: dict[str, TriggerSpec] = {}

    def want(self, spec: TriggerSpec) -> None:
        """Have a trigger run."""
        if spec.id in self.wanted:
            return
        self.wanted[spec.id] = self._to_start[spec.id] = spec
        self._to_stop.pop(spec.id, None)

    def unwant(self, trigger_id: str) -> None:
        """Have a trigger run no more."""
        if self.wanted.pop(trigger_id, None) is not None:
            # Also one that is yet to be started: an earlier one of that name may run, which it was to replace.
            self._to_start.pop(trigger_id, None)
            self._to_stop[trigger_id] = None

    def forget_host(self) -> None:
        """Take note that there is a new host, which runs nothing yet."""
        self._number, self._step = 0, None
        self._to_start, self._to_stop = dict(self.wanted), {}

    def answer(self, session: str, number: int, running: Collection[str] | None) -> TriggerWork | None:
        """Return the next step for a host, None when it knows everything.

        Args:
            session: Of the last answer that it had; empty if it had none.
            number: Of that answer.
            running: What it runs, where it was asked for that.
        """
        if session != self._session:
            return TriggerWork(self._session, tell_all=True)
        if running is not None:
            known = set(running)
            self._number, self._step = 0, None
            self._to_start = {name: spec for name, spec in self.wanted.items() if name not in known}
            self._to_stop = dict.fromkeys(known - self.wanted.keys())
        elif number == self._number:
            self._step = None
        if self._step is None and (self._to_start or self._to_stop):
            self._step = self._next_step()
        return self._step

    def _next_step(self) -> TriggerWork:
        self._number += 1
        starts: list[TriggerSpec] = []
        size = 0
        for spec in self._to_start.values():
            if len(starts) == MAX_STARTS or size > MAX_BYTES:
                break
            starts.append(spec)
            size += len(msgspec.json.encode(spec))
        step = TriggerWork(self._session, self._number, tuple(starts), tuple(self._to_stop))
        for spec in starts:
            del self._to_start[spec.id]
        self._to_stop.clear()
        return step
