"""What every service of one scheduler stands on."""

from dataclasses import dataclass, field

from asynsched.channels import Channels
from asynsched.clock import Clock
from asynsched.housekeeping.outlasting import NO_PROMISE, Promise
from asynsched.metrics.base import Metrics, NoMetrics
from asynsched.settings import Settings
from asynsched.store.database import Database
from asynsched.store.engines.urls import DatabaseUrl, parse_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """A scheduler as it is before it has any service.

    Attributes:
        database_url: For connections beside `database`; None where a program has given it open.
        scheduler_id: Its name, also in the database.
        lease_epoch: Of the runs that are this scheduler's.
        entry: How long nobody else takes those, as it said when it registered; whoever renews no lease says nothing.
        metrics: What takes the figures.
        in_threads: Whether long computations leave the loop; in a simulation no thread may decide an order.
    """

    settings: Settings
    channels: Channels
    clock: Clock
    database: Database
    database_url: str | None
    scheduler_id: str
    lease_epoch: int
    entry: Promise = NO_PROMISE
    metrics: Metrics = field(default_factory=NoMetrics)
    in_threads: bool = True

    @property
    def postgresql_url(self) -> DatabaseUrl | None:
        """Where PostgreSQL is; None for SQLite, and for a database that was given open."""
        url = None if self.database_url is None else parse_url(self.database_url)
        return url if url is not None and url.backend == "postgresql" else None
