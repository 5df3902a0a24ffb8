"""What the process of a simulation is asked."""

from datetime import datetime

from msgspec import Struct

from asynsched.settings import Settings


class SpanWanted(Struct, frozen=True, kw_only=True):
    """The span to simulate, as `asynsched simulate` has it.

    Attributes:
        settings: Of the scheduler, with its DAG folder and its database, which is only read.
        duration: Seconds of each try; None: the median of its task's newest runs, or a minute.
        failure_rate: Share of the tries that fail; None: only tasks fail that have never succeeded.
        pools: Slots by name, instead of the present ones; -1 means no limit.
        dag_id: The DAG that the answer is about; None: all.
        seconds: Of work, after which the simulation ends where it is; None: it may take as long as its process.
    """

    settings: Settings
    start: datetime
    end: datetime
    duration: float | None = None
    failure_rate: float | None = None
    seed: int = 0
    pools: dict[str, int] = {}
    unpause: bool = False
    dag_id: str | None = None
    seconds: float | None = None
