"""Makes the executor, or the executors, that a setting names."""

import asyncio
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial, reduce

from asynsched.errors import SettingsError
from asynsched.executors.base import Executor, ExecutorContext, Held, TryEvent
from asynsched.executors.names import executor_called
from asynsched.protocol.messages import Ended, Launch

BUILT_IN = {
    "local": "asynsched.executors.local:LocalExecutor",
    "sequential": "asynsched.executors.local:SequentialExecutor",
}
"""All of them use the home's keeper: a scheduler has one of them at most."""
ENGINES = {
    "celery": "asynsched.executors.engines.celery:CeleryExecutor",
    "dask": "asynsched.executors.engines.dask:DaskExecutor",
    "slurm": "asynsched.executors.engines.slurm:SlurmExecutor",
    "kubernetes": "asynsched.executors.engines.kubernetes:KubernetesExecutor",
}
"""Executors of tries on other machines."""
NAMES = BUILT_IN | ENGINES


def executor_factory(names: str) -> Callable[[ExecutorContext], Executor]:
    """Return a function that makes the executor, or the executors, that a setting names.

    Args:
        names: `local`, `sequential`, `celery`, `dask`, `slurm`, `kubernetes`, or `package.module:Class`; or
            several, separated by commas, the default first.
            `name=package.module:Class` gives an executor the name that tasks call it by.

    Raises:
        SettingsError: There is no such executor, it is not an Executor, or two of them cannot be combined.
    """
    factories: dict[str, type[Executor]] = {}
    for item in (item.strip() for item in names.split(",")):
        alias, _, path = item.rpartition("=")
        name = alias or path
        if name in factories:
            raise SettingsError(f"executor: {name!r} is named twice; give one of them another name: name={path}")
        factories[name] = _executor_class(path)
    if all(factory.runs_tasks_only for factory in factories.values()):
        factories["local"] = _executor_class("local")
    if len(factories) == 1:
        return next(iter(factories.values()))
    if factories.keys() >= BUILT_IN.keys():
        raise SettingsError("executor: 'local' and 'sequential' cannot be combined: both use the keeper of the home")
    return partial(SeveralExecutors, factories=factories)


def _executor_class(name: str) -> type[Executor]:
    path = NAMES.get(name, name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise SettingsError(f"executor: {name!r} is neither {' nor '.join(map(repr, NAMES))} nor package.module:Class")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as exc:
        raise SettingsError(f"executor: {name!r} cannot be imported: {exc}") from exc
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise SettingsError(f"executor: {name!r} is not a subclass of asynsched.executors.base.Executor")
    return found


class SeveralExecutors(Executor):
    """Passes each launch on to the executor that its task names.

    `factories` make them, by the name that tasks give (`executor=`). The first also runs tasks that name no executor;
    the first that does not run tasks only, trigger hosts, and callbacks unless a setting names another for them.
    """

    def __init__(
        self, context: ExecutorContext, factories: Mapping[str, Callable[[ExecutorContext], Executor]]
    ) -> None:
        super().__init__(context)
        self._executors = {name: make(replace(context, name=name)) for name, make in factories.items()}
        self._first = next(iter(self._executors))
        self._of_others = next(name for name, one in self._executors.items() if not one.runs_tasks_only)
        self._of_token: dict[str, str] = {}

    @property
    def parallelism(self) -> int:
        return sum(self.capacities.values())

    @property
    def capacities(self) -> Mapping[str, int]:
        return {name: executor.parallelism for name, executor in self._executors.items()}

    async def start(self, lease_epoch: int) -> Held:
        return self._found({name: await executor.start(lease_epoch) for name, executor in self._executors.items()})

    async def adopt(self, run_ids: Sequence[int]) -> Held:
        return self._found({name: await executor.adopt(run_ids) for name, executor in self._executors.items()})

    def _found(self, of_each: Mapping[str, Held]) -> Held:
        for name, found in of_each.items():
            self._of_token.update(dict.fromkeys(found.known, name))
        return reduce(Held.joined, of_each.values())

    async def launch(self, launches: Sequence[Launch]) -> None:
        by_name: dict[str, list[Launch]] = {}
        for launch in launches:
            # A launch that is repeated after a restart goes to the same executor.
            is_task = not launch.callback and launch.trigger_host is None
            first = self._first if is_task else self._of_others
            called = executor_called(launch.executor or first, self._executors)
            name = self._of_token.setdefault(launch.token, called)
            by_name.setdefault(name, []).append(launch)
        for name, found in by_name.items():
            if name in self._executors:
                await self._executors[name].launch(found)
                continue
            now, reason = self.context.clock.now(), f"there is no executor {name!r}"
            for launch in found:
                self.context.report(Ended(launch.token, "failed", now, reason=reason, retry=False))

    async def kill(self, token: str, reason: str) -> None:
        for executor in self._holding(token):
            await executor.kill(token, reason)

    async def acknowledge(self, tokens: Sequence[str]) -> None:
        for name, executor in self._executors.items():
            own = [token for token in tokens if self._of_token.get(token, name) == name]
            if own:
                await executor.acknowledge(own)
        for token in tokens:
            self._of_token.pop(token, None)

    def renew_lease(self, valid_until: float) -> None:
        for executor in self._executors.values():
            executor.renew_lease(valid_until)

    @property
    def kept(self) -> Collection[str]:
        return frozenset(token for executor in self._executors.values() for token in executor.kept)

    def look(self) -> None:
        for executor in self._executors.values():
            executor.look()

    def hear(self, events: Sequence[TryEvent]) -> None:
        for executor in self._executors.values():
            executor.hear(events)

    def hurry(self) -> None:
        for executor in self._executors.values():
            executor.hurry()

    async def drain(self, deadline: datetime) -> None:
        await asyncio.gather(*(executor.drain(deadline) for executor in self._executors.values()))

    async def close(self) -> None:
        await asyncio.gather(*(executor.close() for executor in self._executors.values()))

    @property
    def has_left_tries(self) -> bool:
        return any(executor.has_left_tries for executor in self._executors.values())

    def _holding(self, token: str) -> list[Executor]:
        """Return the executor that a token was launched in; all of them if that is not known."""
        name = self._of_token.get(token)
        return [*self._executors.values()] if name not in self._executors else [self._executors[name]]
