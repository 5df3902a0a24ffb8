"""The actions of people meanwhile: they trigger runs, and in some seeds clear, mark, cancel, pause, and change pools.

They act like the command line, or like a program that embeds a scheduler. Each action comes at some moment of its own,
whatever state the schedulers are in.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Literal

from asynsched.bell import Hint
from asynsched.channels import RunCancelled
from asynsched.errors import AsynschedError, InvalidTransition
from asynsched.keys import DagRunKey
from asynsched.scheduling.creation.triggering import create_manual_run
from asynsched.scheduling.creation.wanted_run import Trigger
from asynsched.scheduling.requests.run_requests import submit_request
from asynsched.store.dags.dags import set_paused
from asynsched.store.runs.pools import set_pool
from asynsched.store.runs.requests import CancelRun, ClearTasks, MarkRun, MarkTasks, RunRequest
from tests.faults.simulated.loop import Process
from tests.faults.simulated.stored import TaskRow
from tests.faults.simulated.worlds import EDITED, POOLS, inline_database

SHARE_OF_BUSY = 0.5
"""Of the seeds, those in which people do more than trigger runs."""
MOST_ACTIONS = 4
MOST_EDITS = 6
"""Edits of DAG files."""
FILE_EDITS = "edit files"
"""Names the one thing that people do where they do nothing but edit files."""
LONGEST_WAIT = 60.0
"""Virtual seconds that people wait for a running task before they edit another one."""
UNDER_WAY = frozenset({"running", "deferred"})
ACTOR = "somebody"
PROGRAM_ACTIONS = 0.25
"""Share of requests that a program makes which a scheduler is part of."""
NEVER_FAILED = frozenset({"scheduled", "producer"})
"""DAGs whose tasks must not be marked as failed: later runs or other DAGs depend on them."""
NEVER_CLEARED = frozenset({"scheduled"})
"""DAGs in which a cleared run may wait for ever for the end of a later one, which depends on it."""


class People:
    """Those who work with one exploration's schedulers.

    Attributes:
        pools: How many slots they have given each pool.
        paused: The DAGs that they have paused.
        wished_at: When they have last changed a pool or a pause, in the world's seconds.
        are_done: Whether they do nothing more.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._random = Random(f"people {world.seed}")
        self._process = Process("people")
        conditions = world.conditions
        self._actions = [ACTIONS[conditions.people]] if conditions.people in ACTIONS else _ALL
        are_busy = self._random.random() < SHARE_OF_BUSY
        is_free = not (conditions.faults or conditions.people)
        self.are_busy = conditions.people in ACTIONS or (are_busy and is_free)
        self.pools = dict(POOLS)
        self.paused: set[str] = set()
        self.wished_at = 0.0
        self.are_done = False
        self._has_begun = asyncio.Event()

    def process_begins(self) -> None:
        """The process of a try begins."""
        self._has_begun.set()

    async def act(self) -> None:
        """Do everything."""
        more = [self._do_more()] if self.are_busy else []
        if self._world.folder is not None:
            more.append(self._edit_files())
        await asyncio.gather(self._trigger_runs(), *more)
        self.are_done = True

    async def _trigger_runs(self) -> None:
        random = self._world.chance.random
        dags, wanted = self._world.world.dags, self._world.conditions.dag_id
        dag_ids = [wanted] if wanted else [dag_id for dag_id, dag in dags.items() if not dag.asset_condition]
        for number in range(random.randint(1, 3)):
            await asyncio.sleep(random.choice([0.0, 0.5, 5.0]))
            self._trigger(random.choice(dag_ids), f"r{number}")

    async def _do_more(self) -> None:
        random = self._random
        begun = []
        for _ in range(random.randint(1, MOST_ACTIONS)):
            await asyncio.sleep(random.choice([0.3, 1.0, 3.0]))
            begun.append(asyncio.ensure_future(random.choice(self._actions)(self)))
        await asyncio.gather(*begun)

    async def _edit_files(self) -> None:
        """Edit the files of some DAGs, and in most seeds put them right in the end."""
        random, folder = Random(f"edits {self._world.seed}"), self._world.folder
        dag_ids = [dag_id for dag_id in EDITED if dag_id in self._world.world.dags]
        edits = [folder.release, folder.release, folder.save_again, folder.break_file]
        if not self._world.climate.clock_jump:
            # With a wrong clock, a write in progress is not noticed.
            edits.append(folder.cut_file)
        if random.random() < 0.5:
            edits += [folder.empty_file, folder.remove_file, folder.copy_file, folder.remove_copy]
        for _ in range(random.randint(1, MOST_EDITS)):
            await asyncio.sleep(random.choice([0.0, 0.2, 1.0, 4.0, 10.0]))
            edit, dag_id = random.choice(edits), random.choice(dag_ids)
            edit(dag_id)
            if edit == folder.cut_file:
                await asyncio.sleep(random.choice([0.02, 0.3, 0.8]))
                folder.save_again(dag_id)
        if random.random() < 0.7:
            for dag_id in dag_ids:
                folder.save_again(dag_id)

    # Actions

    async def _clear_tasks(self) -> None:
        if (row := await self._some("tasks")) is not None:
            random = self._random
            flags = {name: random.random() < 0.3 for name in ("upstream", "only_failed", "only_running")}
            request = ClearTasks(
                (row.task_id,), downstream=random.random() < 0.6, map_index=self._some_index(row), **flags
            )
            await self._request(row, request)

    async def _clear_run(self) -> None:
        if (row := await self._some("tasks")) is not None:
            await self._request(row, ClearTasks(latest=self._random.random() < 0.3))

    async def _clear_skipped(self) -> None:
        """Clear something that was skipped, without the task that decided to skip it."""
        await self._until_something_runs()
        rows = self._world.invariants.stored.tasks.values()
        if skipped := [row for row in rows if row.state == "skipped"]:
            row = self._random.choice(skipped)
            await self._request(row, ClearTasks((row.task_id,), map_index=self._some_index(row)))

    async def _clear_mapped(self) -> None:
        """Clear a mapped task with instances, and the task that it is mapped over: it may have others then."""
        for _ in range(MOST_ACTIONS):
            await self._until_something_runs()
            rows = self._world.invariants.stored.tasks.values()
            if mapped := [row for row in rows if row.map_index >= 0]:
                row = self._random.choice(mapped)
                downstream = self._random.random() < 0.5
                await self._request(row, ClearTasks((row.task_id,), upstream=True, downstream=downstream))
                return

    async def _mark_tasks(self) -> None:
        if (row := await self._some("tasks")) is None:
            return
        random = self._random
        states = ["success"] if row.dag_id in NEVER_FAILED else ["success", "failed", "failed", "skipped"]
        downstream, map_index = random.random() < 0.2, self._some_index(row)
        mark = MarkTasks((row.task_id,), random.choice(states), downstream=downstream, map_index=map_index)
        await self._request(row, mark)
        if random.random() < 0.5:
            await asyncio.sleep(random.choice([0.0, 0.1, 1.0]))
            await self._request(row, ClearTasks((row.task_id,), downstream=random.random() < 0.5, map_index=map_index))

    async def _mark_run(self) -> None:
        if (row := await self._some("tasks")) is not None:
            state = "success" if row.dag_id in NEVER_FAILED else self._random.choice(["success", "failed"])
            await self._request(row, MarkRun(state))

    async def _cancel(self) -> None:
        run = await self._some("runs")
        if run is not None and run.dag_id not in NEVER_FAILED:
            await self._request(run, CancelRun())
            if self._random.random() < 0.3:
                await asyncio.sleep(self._random.choice([0.0, 1.0, 6.0]))
                await self._request(run, ClearTasks())

    async def _pause(self) -> None:
        if (run := await self._some("runs")) is not None:
            self._set_paused(run.dag_id, is_paused=True)
            await asyncio.sleep(self._random.choice([0.5, 3.0, 10.0]))
            if not self._set_paused(run.dag_id, is_paused=False):
                # It has left its file, and its runs would wait for ever.
                for left in [one for one in self._world.invariants.stored.runs.values() if one.dag_id == run.dag_id]:
                    await self._request(left, CancelRun())

    async def _resize(self) -> None:
        if (row := await self._some("tasks")) is not None:
            for _ in range(self._random.choice([1, 1, 2])):
                self._set_pool(row.pool, self._random.choice([0, 0, 1, 3, 8]))
                await asyncio.sleep(self._random.choice([0.5, 3.0, 8.0]))
            self._set_pool(row.pool, POOLS[row.pool])

    # Whom they do it to

    async def _some(self, kind: Literal["tasks", "runs"]) -> Any:
        """Return a task instance or a run, mostly one under way or about to be; None if none matches."""
        rows = partial(getattr, self._world.invariants.stored, kind)
        if self._random.random() < 0.8:
            if not (running := [row for row in rows().values() if row.state in UNDER_WAY]):
                await self._until_something_runs()
                running = [row for row in rows().values() if row.state in UNDER_WAY]
            if running:
                return self._random.choice(running)
        return self._random.choice([*rows().values()] or [None])

    async def _until_something_runs(self) -> None:
        self._has_begun.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_begun.wait(), LONGEST_WAIT)
        await asyncio.sleep(self._random.choice([0.1, 0.3, 1.0]))

    def _some_index(self, row: TaskRow) -> int | None:
        return row.map_index if row.map_index >= 0 and self._random.random() < 0.5 else None

    # How they do it

    def _trigger(self, dag_id: str, run_id: str) -> None:
        create = partial(
            create_manual_run,
            dag_id=dag_id,
            wanted=Trigger(run_id=run_id, has_logical_date=False),
            now=self._world.clock.now(),
        )
        self._change(f"trigger {dag_id} {run_id}", create, Hint("run", dag_id=dag_id, run_id=run_id))

    def _set_paused(self, dag_id: str, *, is_paused: bool) -> bool:
        pause = partial(set_paused, dag_id=dag_id, is_paused=is_paused, now=self._world.clock.now())
        self.wished_at = self._world.clock.monotonic()
        is_done = self._change(f"{'pause' if is_paused else 'unpause'} {dag_id}", pause, Hint("dag", dag_id=dag_id))
        if is_done:
            (self.paused.add if is_paused else self.paused.discard)(dag_id)
        return is_done

    def _set_pool(self, name: str, slots: int) -> None:
        self.pools[name] = slots
        self.wished_at = self._world.clock.monotonic()
        set_slots = partial(
            set_pool, name=name, slots=slots, include_deferred=name in self._world.world.pools_with_deferred
        )
        self._change(f"give {name} {slots} slots", set_slots, Hint("pool"))

    async def _request(self, of_run: Any, request: RunRequest) -> None:
        """Clear, mark or cancel, by a command or by a program."""
        if isinstance(request, ClearTasks) and of_run.dag_id in NEVER_CLEARED:
            return
        key = DagRunKey(of_run.dag_id, of_run.run_id)
        site = self._random.choice(list(self._world.sites.values()))
        if self._random.random() < PROGRAM_ACTIONS and site.is_serving:
            await self._request_by_program(site, key, request)
            return
        submit = partial(submit_request, key=key, request=request, actor=ACTOR, now=self._world.clock.now())
        self._change(f"want of {'.'.join(key)}: {request}", submit, Hint("edit", dag_id=key.dag_id, run_id=key.run_id))

    async def _request_by_program(self, site: Any, key: DagRunKey, request: RunRequest) -> None:
        scheduler, channels = site.scheduler, site.scheduler.channels
        self._world.say("people", f"by {site.process.name} want of {'.'.join(key)}: {request}")
        if isinstance(request, CancelRun):
            # As when a caller that waited for a run gives up.
            site.process.context.run(channels.runs.offer, RunCancelled(key))
            return
        match request:
            case ClearTasks():
                work = scheduler.clear_tasks(
                    key, request.task_ids, upstream=request.upstream, downstream=request.downstream,
                    only_failed=request.only_failed, latest=request.latest,
                )  # fmt: skip
            case MarkTasks():
                work = scheduler.mark_tasks(key, request.task_ids, request.state, downstream=request.downstream)
            case _:
                work = scheduler.mark_run(key, request.state)
        done = site.process.start(work, "program")
        await asyncio.wait({done})
        if not done.cancelled() and (error := done.exception()) is not None:
            self._refused(error)

    def _change(self, what: str, query: Callable[..., Any], hint: Hint) -> bool:
        """Do something in one transaction, and wake the schedulers that it concerns. Returns False if it is refused."""
        world = self._world
        world.say("people", what)
        try:
            with world.notifications.of_one_transaction():
                inline_database().connection.write(lambda conn: query(conn))
                if len(world.sites) > 1:
                    world.notifications.notify(None, hint)
        except AsynschedError as exc:
            self._refused(exc)
            return False
        world.committed(self._process, query.func.__name__)
        self._random.choice(list(world.sites.values())).ring([hint])
        return True

    def _refused(self, error: BaseException) -> None:
        """Requests may make no sense any more; a failed state change is a bug."""
        if isinstance(error, InvalidTransition) or not isinstance(error, AsynschedError):
            raise error
        self._world.say("people", f"are told: {error}")


ACTIONS: dict[str, Callable[[People], Awaitable[None]]] = {
    "clear tasks": People._clear_tasks,
    "clear skipped": People._clear_skipped,
    "clear mapped": People._clear_mapped,
    "clear runs": People._clear_run,
    "mark tasks": People._mark_tasks,
    "mark runs": People._mark_run,
    "cancel": People._cancel,
    "pause": People._pause,
    "resize": People._resize,
}
_ALL = [*ACTIONS.values(), People._clear_tasks, People._mark_tasks]
