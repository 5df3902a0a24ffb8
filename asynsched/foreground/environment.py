"""The environment of tasks that run one after the other in one process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from asynsched.authoring.running.context import Context, context_variables


@contextmanager
def environment_of(context: Context) -> Iterator[None]:
    """Within, `AIRFLOW_CTX_*` tell of a task; afterwards the environment is as it was."""
    variables = context_variables(context)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
