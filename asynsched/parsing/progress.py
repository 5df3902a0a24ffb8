"""How far the DAG folder is read: for whoever waits for that, or for a DAG that may be in it."""

import anyio

from asynsched.store.dags import get_dag
from asynsched.store.database import Database


class ReadingProgress:
    """Tells of each step of the reading. `is_complete` once every file was parsed and stored since the start."""

    def __init__(self) -> None:
        self.is_complete = False
        self._step = anyio.Event()

    def note(self, *, is_idle: bool) -> None:
        """Note a step, after which all files known by now are read, or not."""
        self.is_complete = self.is_complete or is_idle
        step, self._step = self._step, anyio.Event()
        step.set()

    async def step(self) -> None:
        """Wait for the next step."""
        await self._step.wait()

    async def until_read(self) -> None:
        """Wait until the folder is read."""
        while not self.is_complete:
            await self._step.wait()

    async def until_known(self, database: Database, dag_id: str) -> None:
        """Wait until there is such a DAG, or the folder is read and there is none. Later it does not wait at all."""
        while not self.is_complete:
            step = self._step
            found = await database.read(get_dag, dag_id)
            if found is not None and found.is_active:
                return
            await step.wait()
