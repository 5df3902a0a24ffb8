"""Functions with which pytest would run a file's DAG."""

from collections.abc import Callable
from typing import Any


def get_test_run(dag: Any, **_: Any) -> Callable[[], Any]:
    """Return a function that runs the DAG once."""

    def test_run() -> Any:
        return dag.test()

    return test_run


def get_test_env_id(env_var_name: str = "SYSTEM_TESTS_ENV_ID") -> str:
    """Return the name of the environment that a system test would make."""
    import os

    return os.environ.get(env_var_name, "compatibility")
