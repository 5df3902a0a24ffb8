"""What a branch or a short circuit decides to leave out is skipped."""

from datetime import datetime

from asynsched.protocol.messages import Ended
from asynsched.scheduling.evaluation.dependencies import may_be_skipped
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.evaluation.state_changes import StateChanges
from asynsched.scheduling.rules.branching import skips_of
from asynsched.states import SLOT_TASK_STATES, TaskInstanceState

State = TaskInstanceState


def skip_left_out(changes: StateChanges, task: ActiveTask, event: Ended, now: datetime) -> list[ActiveTask]:
    """Skip what a task instance that has ended decided to leave out, and return that."""
    if event.decision is None:
        return []
    structure = task.run.structure
    skips = skips_of(event.decision, task.task_id, structure.downstream, structure.teardowns)
    task.skips = skips.task_ids
    changes.pending.skips(task, sorted(skips.task_ids), now)
    targets = [target for task_id in sorted(skips.task_ids) for target in task.run.instances_beside(task, task_id)]
    for target in targets:
        if (not target.is_finished or target.state is State.UPSTREAM_FAILED) and (
            target.state not in SLOT_TASK_STATES and may_be_skipped(target)
        ):
            changes.set_state(target, State.SKIPPED, skips.reason, now)
    return targets
