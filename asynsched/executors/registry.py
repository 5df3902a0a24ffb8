"""Which executors a setting names."""

import importlib
from collections.abc import Callable
from functools import partial

from asynsched.errors import SettingsError
from asynsched.executors.base import Executor, ExecutorContext
from asynsched.executors.several import SeveralExecutors

BUILT_IN = {
    "local": "asynsched.executors.local:LocalExecutor",
    "sequential": "asynsched.executors.sequential:SequentialExecutor",
}


KEEPER_BASED = frozenset(BUILT_IN)
"""Those that share the home's keeper: one of them at a time."""


def executor_factory(names: str) -> Callable[[ExecutorContext], Executor]:
    """Return what makes the executor, or the executors, that a setting names.

    Args:
        names: `local`, `sequential`, or `package.module:Class`; or several, with commas between them, the default
            first. `name=package.module:Class` gives one the name that tasks call it by.

    Raises:
        SettingsError: There is none of that name, it is no Executor, or two of them cannot be together.
    """
    factories: dict[str, Callable[[ExecutorContext], Executor]] = {}
    for item in (item.strip() for item in names.split(",")):
        alias, _, path = item.rpartition("=")
        name = alias or path
        if name in factories:
            raise SettingsError(f"executor: {name!r} is named twice; give one of them another name: name={path}")
        factories[name] = _executor_class(path)
    if len(factories) == 1:
        return next(iter(factories.values()))
    if len([name for name in factories if name in KEEPER_BASED]) > 1:
        raise SettingsError("executor: 'local' and 'sequential' cannot be together: both use the keeper of the home")
    return partial(SeveralExecutors, factories=factories)


def _executor_class(name: str) -> type[Executor]:
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
