"""A database that is away at chosen moments."""

from collections.abc import Callable, Collection
from typing import Any

from asynsched.errors import StoreUnavailable
from asynsched.store.database import Database
from tests.support.passing_database import PassingDatabase


class FlakyDatabase(PassingDatabase):
    """Passes calls on, but for some: those raise, before or after they were done.

    `fails_at` has the numbers of such calls, which are counted from `arm` on, in `n_calls`; `away` has the names of
    queries whose next call is one; `is_away` tells of a query's name whether its calls are such at present.
    """

    failure: type[Exception] = StoreUnavailable

    def __init__(self, inner: Database, *, fails_at: Collection[int] = (), after: bool = False) -> None:
        super().__init__(inner)
        self.away: set[str] = set()
        self.is_away: Callable[[str], bool] = lambda _: False
        self._fails_at = fails_at
        self._after = after
        self._armed = False
        self.n_calls = 0

    def arm(self) -> None:
        self._armed = True

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        fails = (
            self.is_away(query.__name__)
            or query.__name__ in self.away
            or (self._armed and self.n_calls in self._fails_at)
        )
        self.away.discard(query.__name__)
        self.n_calls += self._armed
        if fails and not self._after:
            raise self.failure(f"before {query.__name__}")
        result = await super().pass_on(call, query, args, kwargs)
        if fails:
            raise self.failure(f"after {query.__name__}")
        return result
