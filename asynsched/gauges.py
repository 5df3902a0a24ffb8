"""The gauges of a scheduler: read from memory whenever somebody asks, in that one's thread."""

from collections import Counter
from collections.abc import Iterable

from asynsched.assembly.services import Services
from asynsched.metrics.base import Metrics, Sample
from asynsched.scheduling.evaluation.evaluation import Evaluation
from asynsched.states import TaskInstanceState


def name_gauges(metrics: Metrics, services: Services) -> None:
    """Tell what reads each gauge."""
    evaluation, dispatcher = services.evaluator.evaluation, services.dispatcher
    limit = evaluation.queues.parallelism

    def of_files(field: str) -> Iterable[Sample]:
        yield (), sum(getattr(row, field) for row in dispatcher.known or ())

    def of_pools(place: int) -> Iterable[Sample]:
        for name, slots in _pool_slots(evaluation).items():
            n = slots[place]
            if n is not None:
                yield (name,), n

    def of_loops(field: str) -> Iterable[Sample]:
        return [((loop.name,), getattr(loop, field) or 0.0) for loop in services.vitals.health().loops]

    metrics.gauge("dagbag_size", lambda: of_files("n_dags"))
    metrics.gauge("dag_processing.import_errors", lambda: of_files("n_errors"))
    metrics.gauge("dag_processing.file_path_queue_size", lambda: [((), dispatcher.prepared.n_waiting)])
    metrics.gauge("executor.open_slots", lambda: [((), (limit.capacity or 0) - limit.used)])
    metrics.gauge("executor.queued_tasks", lambda: [((), _in_state(evaluation)[TaskInstanceState.QUEUED])])
    metrics.gauge("executor.running_tasks", lambda: [((), _in_state(evaluation)[TaskInstanceState.RUNNING])])
    metrics.gauge("pool.open_slots", lambda: of_pools(0))
    metrics.gauge("pool.queued_slots", lambda: of_pools(1))
    metrics.gauge("pool.running_slots", lambda: of_pools(2))
    metrics.gauge("pool.deferred_slots", lambda: of_pools(3))
    metrics.gauge("scheduler.dagruns.running", lambda: [((), len(evaluation.runs))])
    metrics.gauge("triggers.running", lambda: [((), services.triggerer.n_triggers)])
    metrics.gauge("scheduler.loop_age_seconds", lambda: of_loops("age_seconds"))
    metrics.gauge("scheduler.loop_step_seconds", lambda: of_loops("step_seconds"))
    metrics.gauge("scheduler.stale_messages", lambda: [((), evaluation.pending.n_stale)])


def _in_state(evaluation: Evaluation) -> Counter[TaskInstanceState | None]:
    return Counter(task.state for task in list(evaluation.tries.values()))


def _pool_slots(evaluation: Evaluation) -> dict[str, tuple[int | None, int, int, int]]:
    """Return the open, queued, running and deferred slots of each pool; none are open of one without a limit."""
    taken: Counter[tuple[str, TaskInstanceState | None]] = Counter()
    for task in list(evaluation.tries.values()):
        taken[task.task.pool, task.state] += task.task.pool_slots
    return {
        name: (
            None if pool.capacity is None else pool.capacity - pool.taken,
            taken[name, TaskInstanceState.QUEUED],
            taken[name, TaskInstanceState.RUNNING],
            pool.deferred,
        )
        for name, pool in list(evaluation.queues.pools.items())
    }
