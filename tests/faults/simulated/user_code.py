"""The actions of the user code of simulated tries, drawn for each."""

from random import Random
from typing import Any, NamedTuple

from asynsched.authoring.triggers.base import FAIL_METHOD
from asynsched.protocol.messages import BranchDecision, Deferral, Launch, OutletEvent, ShortCircuitDecision
from asynsched.serialization.schema import SerializedDag, SerializedTask, results_in

SHARE_OF_PAUSES = 0.06
"""Of the tries, those that look again later, as sensors do."""
SHARE_OF_DEFERRALS = 0.1
"""Of the tries, those that wait for a trigger."""
TRIGGERS = ["fires"] * 6 + ["never", "never", "raises", "success", "failed", "skipped", "crashes", "hangs"]
"""The actions of triggers."""
TRIGGER_CLASS = "tests.faults.simulated.trigger_hosts.ScriptedTrigger"
MOST_RESULTS = 3
"""Values in a list that tasks are mapped over, at most."""
Decision = BranchDecision | ShortCircuitDecision


class Plan(NamedTuple):
    """The actions of a try's user code."""

    state: str = "success"
    duration: float = 1.0
    value: Any = None
    pushes: bool = False
    """Whether it stores an XCom before it goes on, and waits for the answer."""
    decision: Decision | None = None
    reschedule_after: float | None = None
    deferral: Deferral | None = None
    outlet_events: tuple[OutletEvent, ...] = ()


def draw_plan(random: Random, launch: Launch, dag: SerializedDag) -> Plan:
    """Return the plan of a try of this DAG's task, or of a callback."""
    duration = random.choice([0.0, 0.2, 1.0, 6.0])
    if launch.callback:
        return Plan(duration=duration)
    state = random.choice(["success"] * 4 + ["failed"] * 2 + ["skipped"])
    if launch.max_tries >= 99:
        state = "success"
    elif launch.resume is not None and launch.resume.method_name == FAIL_METHOD:
        return Plan("failed", duration)
    elif (deferral := _deferral(launch)) is not None:
        return Plan("deferred", duration, deferral=deferral)
    pauses = Random(f"pauses {launch.token}")
    if pauses.random() < SHARE_OF_PAUSES:
        return Plan("up_for_reschedule", duration, reschedule_after=pauses.choice([0.0, 1.0, 5.0]))
    plan = Plan(state, duration, value=random.choice([None, 1]), pushes=random.random() < 0.15)
    if launch.map_index < 0 and any(launch.task_id in _sources(task) for task in dag.tasks):
        plan = plan._replace(value=[0] * Random(f"results {launch.token}").randint(0, MOST_RESULTS))
    return _with_decision(plan, launch, dag)


def _deferral(launch: Launch) -> Deferral | None:
    """Return the deferral of a try, or None if it does not wait. A resumed try may wait once more."""
    random = Random(f"defers {launch.token}")
    if random.random() >= SHARE_OF_DEFERRALS:
        return None
    does, seconds = random.choice(TRIGGERS), random.choice([0.0, 0.5, 5.0, 20.0])
    timeout = random.choice([None, None, 0.5, 10.0])
    if does in ("never", "hangs"):
        timeout = random.choice([0.5, 10.0, 45.0])
    return Deferral(
        TRIGGER_CLASS, {"does": does, "seconds": seconds}, "resumed", {"deferred_by": launch.token}, timeout=timeout
    )


def _sources(task: SerializedTask) -> tuple[str, ...]:
    """Return the tasks over whose results a task is mapped."""
    return () if task.map_length is None else tuple(results_in(task.map_length))


def _with_decision(plan: Plan, launch: Launch, dag: SerializedDag) -> Plan:
    """Return a plan in which a branch follows some of the tasks after it, and a short circuit is false or true."""
    random = Random(f"decides {launch.token}")
    task = next(task for task in dag.tasks if task.task_id == launch.task_id)
    if task.is_branch:
        targets = task.downstream_task_ids
        follow = random.sample(targets, random.randint(0, len(targets)))
        if random.random() < 0.2:
            # It may be further down, or somewhere else.
            follow.append(random.choice(dag.tasks).task_id)
        return plan._replace(value=follow, decision=BranchDecision(tuple(follow)))
    if task.is_short_circuit and random.random() < 0.7:
        ignores = random.random() < 0.7
        return plan._replace(value=False, decision=ShortCircuitDecision(ignore_downstream_trigger_rules=ignores))
    return plan
