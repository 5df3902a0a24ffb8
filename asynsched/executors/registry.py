"""Which executor a setting names."""

import importlib
from collections.abc import Callable

from asynsched.errors import SettingsError
from asynsched.executors.base import Executor, ExecutorContext

BUILT_IN = {
    "local": "asynsched.executors.local:LocalExecutor",
    "sequential": "asynsched.executors.sequential:SequentialExecutor",
}


def executor_factory(name: str) -> Callable[[ExecutorContext], Executor]:
    """Return the class of an executor.

    Args:
        name: `local`, `sequential`, or `package.module:Class`.

    Raises:
        SettingsError: There is none of that name, or it is no Executor.
    """
    path = BUILT_IN.get(name, name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise SettingsError(
            f"executor: {name!r} is neither {' nor '.join(map(repr, BUILT_IN))} nor package.module:Class"
        )
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as exc:
        raise SettingsError(f"executor: {name!r} cannot be imported: {exc}") from exc
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise SettingsError(f"executor: {name!r} is no subclass of asynsched.executors.base.Executor")
    return found
