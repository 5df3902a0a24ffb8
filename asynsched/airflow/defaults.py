"""The defaults of tasks, and the longest identifier, as constants that Airflow's modules have."""

from __future__ import annotations

from datetime import timedelta

from asynsched.authoring.defaults import DEFAULT_POOL
from asynsched.authoring.node import MAX_KEY_LENGTH
from asynsched.authoring.trigger_rule import TriggerRule, WeightRule

ID_LEN = MAX_KEY_LENGTH
DEFAULT_EXECUTOR: str | None = None
DEFAULT_OWNER = "airflow"
DEFAULT_POOL_NAME = DEFAULT_POOL
DEFAULT_POOL_SLOTS = 1
DEFAULT_PRIORITY_WEIGHT = 1
DEFAULT_QUEUE = "default"
DEFAULT_RETRIES = 0
DEFAULT_RETRY_DELAY = timedelta(seconds=300)
DEFAULT_TRIGGER_RULE = TriggerRule.ALL_SUCCESS
DEFAULT_WEIGHT_RULE = WeightRule.DOWNSTREAM
