"""A database that passes every call on, for those that do something beside."""

from typing import Any

from asynsched.store.database import Database


class PassingDatabase(Database):
    """Passes calls on to `inner`. Subclasses override `pass_on`, which every call goes through."""

    def __init__(self, inner: Database) -> None:
        self.inner = inner

    @property
    def is_shared(self) -> bool:
        return self.inner.is_shared

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.pass_on(self.inner.read, query, args, kwargs)

    async def read_at_once(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.pass_on(self.inner.read_at_once, query, args, kwargs)

    async def write(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.pass_on(self.inner.write, query, args, kwargs)

    async def write_at_once(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        return await self.pass_on(self.inner.write_at_once, query, args, kwargs)

    async def pass_on(self, call: Any, query: Any, args: Any, kwargs: Any) -> Any:
        return await call(query, *args, **kwargs)

    async def close(self) -> None:
        await self.inner.close()
