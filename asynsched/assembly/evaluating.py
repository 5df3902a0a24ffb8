"""Makes the dependency evaluator, and what it decides with."""

from collections.abc import Callable, Mapping
from functools import partial

from asynsched.assembly.foundation import Foundation
from asynsched.executors.try_tokens import boot_mark, new_try_token
from asynsched.scheduling.evaluation.by_settings import evaluation_by_settings
from asynsched.scheduling.evaluation.pending import PendingBatch
from asynsched.scheduling.evaluator import DependencyEvaluator
from asynsched.scheduling.run_intake import RunIntake
from asynsched.scheduling.slices import AT_ONCE
from asynsched.scheduling.versions import VersionCache


def make_evaluator(
    base: Foundation,
    versions: VersionCache,
    parallelism: int,
    executors: Mapping[str, int],
    has_peers: Callable[[], bool],
) -> DependencyEvaluator:
    """Return an evaluator without runs.

    Args:
        base: What it stands on.
        versions: Of the DAGs whose runs it takes in.
        parallelism: How many tasks may run at once.
        executors: How many of them in each of several executors, by the names that tasks give.
        has_peers: Whether there are other schedulers now.
    """
    evaluation = evaluation_by_settings(
        base.settings,
        PendingBatch(base.scheduler_id, base.lease_epoch),
        parallelism=parallelism,
        executors=executors,
        new_token=partial(new_try_token, boot_mark(base.clock.boot())),
        at_once=AT_ONCE,
    )
    intake = RunIntake(
        database=base.database,
        versions=versions,
        evaluation=evaluation,
        channels=base.channels,
        max_started_at_once=base.settings.max_dagruns_per_loop_to_schedule,
        owner=(base.scheduler_id, base.lease_epoch),
        has_peers=has_peers,
    )
    return DependencyEvaluator(
        settings=base.settings,
        channels=base.channels,
        database=base.database,
        clock=base.clock,
        evaluation=evaluation,
        intake=intake,
        has_peers=has_peers,
    )
