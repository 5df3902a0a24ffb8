"""The connection with a Dask cluster, which a function may make: a new one once it has been lost for long."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from distributed import Client

from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.executors.engines.circuit_breaker import CircuitBreaker
from asynsched.executors.own_threads import in_own_thread
from asynsched.executors.remote.engine import reason_of
from asynsched.loggers import get_logger
from asynsched.settings import DaskSettings

log = get_logger(__name__)

T = TypeVar("T")
CALL_SECONDS = 10.0
"""Longest that the scheduler waits for the cluster in one call."""
CONNECT_SECONDS = 45.0
"""Longest that a connection may take. Dask's own limit, usually 30 s, leaves out the wait for the first word of its
scheduler, which lasts for ever if the network has lost that word."""


class DaskConnection:
    """Connects with the cluster of the settings, whose workers get a plugin.

    Args:
        make_plugin: Returns the plugin.

    Raises:
        SettingsError: The settings name no cluster, or two.
    """

    def __init__(self, settings: DaskSettings, clock: Clock, make_plugin: Callable[[], Any]) -> None:
        if bool(settings.address) == bool(settings.cluster):
            raise SettingsError(
                "dask.address: Dask needs the address of its scheduler, such as tcp://HOST:8786, or dask.cluster, a"
                " function that makes a cluster"
            )
        self._settings = settings
        self._clock = clock
        self._make_plugin = make_plugin
        self._cluster: Any = None
        self._threads = anyio.CapacityLimiter(1)
        """Of the calls that make and close the cluster."""
        self._is_closing = False
        self._client: Any = None
        self._connecting: asyncio.Task[Any] | None = None
        self._connected_at = 0.0  # when a call last found the connection not lost
        self._breaker = CircuitBreaker(clock, "the Dask scheduler", CALL_SECONDS)

    async def client(self) -> Any:
        """Return a client of the cluster; a new one if the connection has ended for good. Raises errors of any kind."""
        if self._client is None or self._client.status != "connecting":
            self._connected_at = self._clock.monotonic()
        elif self._clock.monotonic() - self._connected_at < CONNECT_SECONDS:
            raise ConnectionError("the connection with the Dask scheduler is lost")  # a call would wait for it
        else:
            lost, self._client = self._client, None
            await _close(lost)
        if self._client is None or self._client.status != "running":
            # It goes on after the time limit of this call.
            connecting = self._connecting = self._connecting or asyncio.create_task(self._connect(), name="dask")
            try:
                await self._breaker.call(lambda: asyncio.wait([connecting]))
            except TimeoutError as exc:
                if self._settings.cluster and self._cluster is None:
                    raise TimeoutError(f"dask.cluster: {self._settings.cluster} has not returned yet") from exc
                raise
            self._connecting = None
            self._client = connecting.result()
        return self._client

    async def call(self, request: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of the Dask scheduler. Raises TimeoutError."""
        return await self._breaker.call(request)

    async def drop(self, client: Any) -> None:
        """Close a client, whose connection is lost: the next call makes another one."""
        self._client = None
        await _close(client)

    async def _connect(self) -> Any:
        """Return a new client, with which the plugin is registered."""
        if self._cluster is None and self._settings.cluster:
            self._cluster = await in_own_thread(self._make_cluster, self._threads, "dask.cluster")
        # Not the cluster itself, whose client would run in the cluster's own loop.
        address = getattr(self._cluster, "scheduler_address", self._cluster) or self._settings.address
        security = getattr(self._cluster, "security", None)
        client = Client(address, asynchronous=True, name="asynsched", set_as_default=False, security=security)
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                await client
                await client.register_plugin(self._make_plugin())
        except BaseException:
            await _close(client)
            raise
        return client

    def _make_cluster(self) -> Any:
        """Return a new cluster. If this engine has been closed meanwhile, nobody else would close it."""
        cluster = _made(self._settings)
        if self._is_closing and hasattr(cluster, "close"):
            cluster.close()
        return cluster

    async def close(self) -> None:
        self._is_closing = True
        if (connecting := self._connecting) is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled() and connecting.exception() is None:
                self._client = connecting.result()  # it came after the call that had asked for it
        if self._client is not None:
            await _close(self._client)
        if hasattr(self._cluster, "close"):  # otherwise it is an address
            try:
                with anyio.move_on_after(CALL_SECONDS):
                    await in_own_thread(self._cluster.close, self._threads, "dask.cluster")
            except Exception as exc:  # noqa: BLE001 - of a library that this scheduler only stops using
                log.warning("dask.cluster_not_closed", error=reason_of(exc))


async def _close(client: Any) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(CALL_SECONDS):
        await client.close()


def _made(settings: DaskSettings) -> Any:
    """Call the function that makes the cluster. Raises SettingsError."""
    module_name, _, name = settings.cluster.partition(":")
    try:
        make: Callable[[], Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SettingsError(f"dask.cluster: {settings.cluster!r} cannot be imported: {exc}") from exc
    return make()
