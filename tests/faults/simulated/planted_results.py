"""Bugs that are planted on purpose where the result of a task decides about those after it."""

from asynsched.scheduling import loading
from asynsched.scheduling.evaluation import decisions
from asynsched.scheduling.evaluation.run import ActiveRun
from tests.faults.simulated.bug import Bug, Change
from tests.faults.simulated.conditions import STORES, Conditions


def _forgotten_decision() -> list[Change]:
    return [(loading, "take_decisions", lambda *_: None)]


def _left_out_while_it_runs() -> list[Change]:
    return [(decisions, "SLOT_TASK_STATES", frozenset())]


def _short_circuit_of_one() -> list[Change]:
    skips_of = decisions.skips_of

    def skip_direct(decision, task_id, downstream, teardowns):
        return skips_of(decision, task_id, {**dict.fromkeys(downstream, ()), task_id: downstream[task_id]}, teardowns)

    return [(decisions, "skips_of", skip_direct)]


def _forgotten_length() -> list[Change]:
    load = loading._active_task

    def load_without_length(run, row):
        task = load(run, row)
        task.result_length = None
        return task

    return [(loading, "_active_task", load_without_length)]


def _old_number_of_instances() -> list[Change]:
    return [(decisions, "_refit", lambda *_: [])]


def _decision_for_every_place() -> list[Change]:
    return [(ActiveRun, "instances_beside", lambda self, _task, other_id: list(self.instances[other_id].values()))]


def _forgotten_decision_of_instances() -> list[Change]:
    take_decisions = loading.take_decisions

    def without_instances(tasks, decisions):
        take_decisions(tasks, [found for found in decisions if found.map_index < 0])

    return [(loading, "take_decisions", without_instances)]


DECIDING = Conditions(dag_id="deciding")
BUGS_OF_RESULTS: dict[str, Bug] = {
    "forgotten-decision": Bug(
        "A task that a branch has skipped runs when it is cleared.",
        _forgotten_decision,
        Conditions(people="clear skipped", dag_id="deciding"),
    ),
    "left-out-while-it-runs": Bug("A branch skips tasks that run already.", _left_out_while_it_runs, DECIDING),
    "forgotten-length": Bug(
        "How many values a result has is forgotten with the scheduler.",
        _forgotten_length,
        Conditions(("crash_after",), STORES, dag_id="mapping"),
    ),
    "old-number-of-instances": Bug(
        "A task that is mapped over a result keeps its instances when that is another one.",
        _old_number_of_instances,
        Conditions(people="clear mapped", dag_id="mapping"),
    ),
    "short-circuit-of-one": Bug(
        "A short circuit skips only the tasks directly after it.", _short_circuit_of_one, DECIDING
    ),
    "decision-for-every-place": Bug(
        "A branch in a mapped group skips the tasks after it in all instances of the group.",
        _decision_for_every_place,
        Conditions(dag_id="mapped_deciding"),
    ),
    "forgotten-decision-of-instances": Bug(
        "A task that an instance of a branch has skipped runs when it is cleared.",
        _forgotten_decision_of_instances,
        Conditions(people="clear skipped", dag_id="mapped_deciding"),
    ),
}
