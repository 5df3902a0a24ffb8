"""The names of trigger rules and of weight rules."""

from __future__ import annotations


class TriggerRule:
    """When a task runs, given how its upstream tasks ended: plain texts under Airflow's names."""

    ALL_SUCCESS = "all_success"
    ALL_FAILED = "all_failed"
    ALL_DONE = "all_done"
    ALL_DONE_MIN_ONE_SUCCESS = "all_done_min_one_success"
    ALL_DONE_SETUP_SUCCESS = "all_done_setup_success"
    ALL_SKIPPED = "all_skipped"
    ONE_SUCCESS = "one_success"
    ONE_FAILED = "one_failed"
    ONE_DONE = "one_done"
    NONE_FAILED = "none_failed"
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"
    NONE_SKIPPED = "none_skipped"
    ALWAYS = "always"


class WeightRule:
    """How a task's total priority weight is summed up."""

    DOWNSTREAM = "downstream"
    UPSTREAM = "upstream"
    ABSOLUTE = "absolute"


TRIGGER_RULES = tuple(value for name, value in vars(TriggerRule).items() if name.isupper())
WEIGHT_RULES = tuple(value for name, value in vars(WeightRule).items() if name.isupper())
