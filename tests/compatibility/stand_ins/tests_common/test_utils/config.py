"""Configuration for the time of a block."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from asynsched.airflow.configuration import variable_of
from asynsched.airflow.processes import patch_environ


def conf_vars(overrides: Mapping[tuple[str, str], str]) -> AbstractContextManager[None]:
    """Set options of `conf` by environment variables."""
    return patch_environ({variable_of(*option): text for option, text in overrides.items()})
