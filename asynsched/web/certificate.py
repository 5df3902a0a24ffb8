"""The certificate of HTTPS. When its files change, new connections get the new one; open connections keep theirs."""

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio.to_thread import run_sync

from asynsched.clock import Clock
from asynsched.errors import SettingsError
from asynsched.loggers import get_logger
from asynsched.parsing.watching.file_events import NativeEvents
from asynsched.settings import WebSettings

log = get_logger(__name__)

STEP_SECONDS, LONGEST_SECONDS = 0.1, 1.0
"""How long the writes of a renewal must pause, so that the certificate and its key fit, and how long they may go on."""


class _Stamp(NamedTuple):
    """Changes with the content of a file."""

    inode: int
    size: int
    changed_ns: int


class Certificate:
    """The files of a certificate and its key.

    Its constructor reads them, and raises SettingsError if they cannot be used.
    """

    def __init__(self, settings: WebSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._files = [Path(name) for name in (settings.tls_certificate, settings.tls_key) if name is not None]
        self._stamps = self._read_stamps()
        self._newest = read_certificate(settings)

    def show_in(self, context: ssl.SSLContext) -> None:
        """Make the handshakes of a server's context show the newest certificate.

        A context may not change while another thread begins a connection with it; so a new certificate is a new one.
        """

        def choose(connection: Any, *_: object) -> None:
            connection.context = self._newest

        context.sni_callback = choose  # called also for clients that name no server

    async def follow(self) -> None:
        """Read the files again whenever they change, until this is cancelled or they cannot be watched."""
        while True:
            changed = anyio.Event()
            folders = await run_sync(self._folders)
            events = NativeEvents(
                folders, step=STEP_SECONDS, debounce=LONGEST_SECONDS, clock=self._clock, wake=changed.set
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(events.listen)
                await events.is_ready.wait()
                if not await run_sync(self._read_again):  # they may have changed before they were watched
                    await changed.wait()
                events.stop()
            if events.failure is not None:
                log.warning("web.certificate_not_watched", reason=str(events.failure), hint="restart after a renewal")
                return

    def _folders(self) -> set[str]:
        """Return where a change of the files can be seen: where they are, and where symbolic links lead."""
        folders = {file.absolute().parent for file in self._files}
        with suppress(OSError, RuntimeError):  # links that lead in a circle
            folders |= {file.resolve().parent for file in self._files}
        return {str(folder) for folder in folders}

    def _read_again(self) -> bool:
        """Read the files if they have changed, and return whether they have."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self._newest = read_certificate(self._settings)
        except SettingsError as exc:
            log.warning("web.certificate_kept", reason=str(exc), hint="new connections still get the one before")
        else:
            log.info("web.certificate_read", file=self._settings.tls_certificate)
        return True

    def _read_stamps(self) -> list[_Stamp | None]:
        return [_stamp(file) for file in self._files]


def read_certificate(settings: WebSettings) -> ssl.SSLContext:
    """Return a server's context with the certificate of the settings. Raises SettingsError."""
    assert settings.tls_certificate is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as exc:
        files = f"{settings.tls_certificate} and {settings.tls_key}"
        raise SettingsError(f"web.tls_certificate: {files} cannot be used: {exc}") from exc
    return context


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return _Stamp(found.st_ino, found.st_size, found.st_mtime_ns)
