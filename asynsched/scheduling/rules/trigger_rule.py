"""Trigger rules: may a task run, given how its upstream tasks ended?

Source: Apache Airflow's `TriggerRuleDep`. The upstreams that have finished can decide a task before the others end:
with `all_success`, a skipped upstream skips the task while another upstream still runs.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields

from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.states import FAILED_TASK_STATES, FINISHED_TASK_STATES, TaskInstanceState

SKIPPED, UPSTREAM_FAILED = TaskInstanceState.SKIPPED, TaskInstanceState.UPSTREAM_FAILED


@dataclass(slots=True)
class UpstreamCounts:
    """How many upstream task instances there are, and how many have ended in each state.

    Attributes:
        total: All of them; `n_setups`, `success_setup` and `skipped_setup` count the setups among them.
        has_news: Whether a count that could change a verdict has changed since the reader set this to False. Rules
            depend on which states occur and on whether all have ended, so one more success among many changes nothing.
    """

    total: int = 0
    success: int = 0
    failed: int = 0
    upstream_failed: int = 0
    skipped: int = 0
    removed: int = 0
    n_setups: int = 0
    success_setup: int = 0
    skipped_setup: int = 0
    has_news: bool = field(default=True, compare=False)

    @property
    def done(self) -> int:
        return self.success + self.failed + self.upstream_failed + self.skipped + self.removed

    @property
    def all_done(self) -> bool:
        return self.done >= self.total

    @property
    def bad(self) -> int:
        """How many have failed, or could not run because of a failure."""
        return self.failed + self.upstream_failed

    def add(self, state: TaskInstanceState, *, is_setup: bool, times: int = 1) -> None:
        """Count an upstream that ended in a finished state; `times=-1` takes it back."""
        n_before = getattr(self, state.value)
        setattr(self, state.value, n_before + times)
        if not n_before or times < 0 or is_setup or self.removed or self.all_done:
            self.has_news = True
        if is_setup and state is TaskInstanceState.SUCCESS:
            self.success_setup += times
        elif is_setup and state is SKIPPED:
            self.skipped_setup += times

    def add_expected(self, n: int, *, is_setup: bool) -> None:
        """Raise the total by `n` upstreams; a negative `n` takes them back."""
        self.total += n
        self.n_setups += n if is_setup else 0

    def together(self, other: "UpstreamCounts") -> "UpstreamCounts":
        """Return the sum of both."""
        return UpstreamCounts(*(getattr(self, name) + getattr(other, name) for name in _COUNTED))

    def describe(self) -> str:
        """Return e.g. `2 of 3 done: 1 success, 1 failed`."""
        names = ("success", "failed", "upstream_failed", "skipped", "removed")
        parts = [f"{getattr(self, name)} {name}" for name in names if getattr(self, name)]
        return f"{self.done} of {self.total} done" + (f": {', '.join(parts)}" if parts else "")


_COUNTED = tuple(found.name for found in fields(UpstreamCounts) if found.name != "has_news")


def evaluate(rule: str, upstream: UpstreamCounts, *, map_index: int = -1) -> Verdict:
    """Decide by a task's trigger rule whether it runs, waits, or ends.

    Args:
        rule: Airflow's name of the trigger rule.
        map_index: Index of the task instance; a mapped one is removed when fewer upstreams are left than its index.

    Raises:
        KeyError: There is no such rule. Serialization rejects unknown rules before.
    """
    if not upstream.total:
        return MET
    chosen = _RULES[rule]
    ends_as = chosen.end_state(upstream)
    if ends_as is None and rule == "all_success":
        ends_as = _removed(upstream, map_index)
    missing = chosen.missing(upstream)
    if ends_as is None and missing <= 0:
        return MET
    return Verdict(
        met=missing <= 0,
        reason=lambda: f"trigger rule {rule} needs {chosen.needs}; {upstream.describe()}",
        ends_as=ends_as,
    )


def evaluate_setups(setups: UpstreamCounts, *, map_index: int) -> Verdict:
    """Decide by the setups that a task needs although they are not its direct upstreams.

    All must succeed, regardless of the task's own rule; a failed or skipped one ends the task without waiting.
    """
    ends_as = _all_success(setups) or _removed(setups, map_index)
    missing = setups.total - setups.success - (setups.removed if map_index >= 0 else 0)
    if ends_as is None and missing <= 0:
        return MET
    return Verdict(met=missing <= 0, reason=lambda: f"its setups must succeed; {setups.describe()}", ends_as=ends_as)


def _removed(upstream: UpstreamCounts, map_index: int) -> TaskInstanceState | None:
    return TaskInstanceState.REMOVED if upstream.removed and 0 < upstream.success <= map_index else None


def mapped_upstream(states: Collection[TaskInstanceState | None]) -> Verdict:
    """Decide by the tasks that a task is mapped over, given the states of their unexpanded instances."""
    finished = FINISHED_TASK_STATES.intersection(states)
    if not finished or finished == {TaskInstanceState.SUCCESS}:
        return MET
    ends_as = None
    if finished & FAILED_TASK_STATES:
        ends_as = UPSTREAM_FAILED
    elif SKIPPED in finished:
        ends_as = SKIPPED
    names = ", ".join(sorted(finished))
    return Verdict(met=False, reason=f"the tasks it is mapped over did not all succeed: {names}", ends_as=ends_as)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A trigger rule.

    Attributes:
        needs: The requirement in words.
        missing: Counts the ends that the task still needs to run.
        end_state: Returns the state of a task that can no longer run, None while it can.
    """

    needs: str
    missing: Callable[[UpstreamCounts], int]
    end_state: Callable[[UpstreamCounts], TaskInstanceState | None]


def _all_success(up: UpstreamCounts) -> TaskInstanceState | None:
    if up.bad:
        return UPSTREAM_FAILED
    return SKIPPED if up.skipped else None


def _one_success(up: UpstreamCounts) -> TaskInstanceState | None:
    if not up.all_done or up.success:
        return None
    return SKIPPED if up.done == up.skipped else UPSTREAM_FAILED


def _all_done_min_one_success(up: UpstreamCounts) -> TaskInstanceState | None:
    if up.skipped:
        return SKIPPED
    return UPSTREAM_FAILED if up.all_done and not up.success else None


def _all_done_setup_success(up: UpstreamCounts) -> TaskInstanceState | None:
    if not up.all_done or not up.n_setups:
        return None
    if up.skipped_setup >= up.n_setups:
        return SKIPPED
    return None if up.success_setup else UPSTREAM_FAILED


# A new rule has to meet two conditions:
# - It depends only on which states occur among the upstreams and on whether all have ended, not on other numbers
#   (`UpstreamCounts.has_news`). A rule "two succeed" would hang: after the second success nobody asks it again.
# - It ends all instances of a mapped task alike, unless they depend on instances of their own (`ActiveRun.take`).
_RULES: dict[str, _Rule] = {
    "all_success": _Rule("every upstream to succeed", lambda up: up.total - up.success - up.removed, _all_success),
    "all_failed": _Rule(
        "every upstream to fail",
        lambda up: up.total - up.bad - up.removed,
        lambda up: SKIPPED if up.success or up.skipped else None,
    ),
    "all_done": _Rule("every upstream to end", lambda up: up.total - up.done, lambda _: None),
    "all_done_min_one_success": _Rule(
        "every upstream to end unskipped and one to succeed",
        lambda up: max(up.total - up.done + up.skipped, 0 if up.success else 1),
        _all_done_min_one_success,
    ),
    "all_done_setup_success": _Rule(
        "every upstream to end and a setup to succeed",
        lambda up: max(up.total - up.done, 1 if up.n_setups and not up.success_setup else 0),
        _all_done_setup_success,
    ),
    "all_skipped": _Rule(
        "every upstream to be skipped",
        lambda up: up.total - up.skipped,
        lambda up: SKIPPED if up.success or up.bad else None,
    ),
    "one_success": _Rule("one upstream to succeed", lambda up: 0 if up.success else 1, _one_success),
    "one_failed": _Rule(
        "one upstream to fail",
        lambda up: 0 if up.bad else 1,
        lambda up: SKIPPED if up.all_done and not up.bad else None,
    ),
    "one_done": _Rule(
        "one upstream to succeed or fail",
        lambda up: 0 if up.success or up.failed else 1,
        lambda up: SKIPPED if up.all_done and not (up.success or up.failed) else None,
    ),
    "none_failed": _Rule(
        "every upstream to succeed or be skipped",
        lambda up: up.total - up.success - up.skipped - up.removed,
        lambda up: UPSTREAM_FAILED if up.bad else None,
    ),
    "none_failed_min_one_success": _Rule(
        "every upstream to succeed or be skipped, and one to succeed",
        lambda up: max(up.total - up.success - up.skipped - up.removed, 0 if up.success else 1),
        lambda up: UPSTREAM_FAILED if up.bad else _one_success(up),
    ),
    "none_skipped": _Rule(
        "every upstream to end unskipped",
        lambda up: up.total - up.done + up.skipped,
        lambda up: SKIPPED if up.skipped else None,
    ),
    "always": _Rule("nothing", lambda _: 0, lambda _: None),
}
