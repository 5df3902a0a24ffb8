"""A database that is away at one chosen moment."""

from typing import Any

from asynsched.errors import StoreUnavailable
from asynsched.store.database import Database


class FlakyDatabase(Database):
    """Passes calls on, but for the `fails_at`-th: that one raises, before or after it was done.

    `n_calls` counts the calls from `arm` on.
    """

    def __init__(self, inner: Database, *, fails_at: int | None = None, after: bool = False) -> None:
        self._inner = inner
        self._fails_at = fails_at
        self._after = after
        self._armed = False
        self.n_calls = 0

    def arm(self) -> None:
        self._armed = True

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._call(self._inner.read, query, args, kwargs)

    async def write(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._call(self._inner.write, query, args, kwargs)

    async def close(self) -> None:
        await self._inner.close()

    async def _call(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        fails = self._armed and self.n_calls == self._fails_at
        self.n_calls += self._armed
        if fails and not self._after:
            raise StoreUnavailable(f"away before {query.__name__}")
        result = await call(query, *args, **kwargs)
        if fails:
            raise StoreUnavailable(f"away after {query.__name__}")
        return result
