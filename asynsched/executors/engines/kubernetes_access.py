"""How the API of Kubernetes is reached, with credentials that expire."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.executors.remote.engine import reason_of
from asynsched.loggers import get_logger
from asynsched.settings import KubernetesSettings

log = get_logger(__name__)

CERTIFICATES = "kubernetes"
"""Folder in the home for the certificates of a kubeconfig. The client's library keeps them in files, which it needs for
as long as the process lives. Some systems remove old files from the folder for temporary files."""
RENEW_INTERVAL = timedelta(minutes=1)
"""Time between two looks at a token. The client's library asks for a new one minutes before the present one ends; each
time if it does not know when that is."""
SLOW_SECONDS = 15.0
"""How long credentials may take before a warning says that they are awaited."""


class Access:
    """The configuration of the API's client.

    In a cluster, the client itself reads its token again. A program, an identity provider or a file that a kubeconfig
    names is asked again here, by one call at a time. A program that hangs is not ended: it may be waiting for a person.
    """

    def __init__(self, settings: KubernetesSettings, home: Path, clock: Clock) -> None:
        self.configuration = Configuration()
        self._settings = settings
        self._folder = home / CERTIFICATES / str(os.getpid())
        self._clock = clock
        self._loader: Any = None

    async def load(self) -> None:
        """Read the configuration. Raises SettingsError."""
        file, context = self._settings.kubeconfig, self._settings.context
        try:
            if file or context:
                await run_sync(_remove_others, self._folder)
                with self._says_if_slow():
                    self._loader = await config.load_kube_config(
                        file or None, context or None, self.configuration, temp_file_path=str(self._folder)
                    )
            else:
                config.load_incluster_config(self.configuration)
        except (config.ConfigException, OSError) as exc:
            advice = "" if file else "; outside of a cluster, name a file, as kubectl has"
            raise SettingsError(f"kubernetes.kubeconfig: {file or 'it is not set'}: {exc}{advice}") from exc

    async def serve(self) -> None:
        """Renew the token of a kubeconfig before it expires."""
        while self._loader is not None and "BearerToken" in self.configuration.api_key:
            await self._clock.sleep(RENEW_INTERVAL)
            try:
                with self._says_if_slow():
                    await self._loader.load_and_set(self.configuration)
            except Exception as exc:  # noqa: BLE001 - of any program or provider; the present token may still be good
                log.warning("kubernetes.token_not_renewed", error=reason_of(exc))

    @contextmanager
    def _says_if_slow(self) -> Iterator[None]:
        where = self._settings.kubeconfig or "the default one"
        warn = asyncio.get_running_loop().call_later(
            SLOW_SECONDS, lambda: log.warning("kubernetes.token_awaited", kubeconfig=where, seconds=SLOW_SECONDS)
        )
        try:
            yield
        finally:
            warn.cancel()


def _remove_others(folder: Path) -> None:
    """Remove the folders beside one, which killed processes have left."""
    for other in folder.parent.glob("*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
