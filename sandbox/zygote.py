"""The zygote: forks the processes that load DAG files, and has never seen a secret.

A fork has all the memory of the process that it is a fork of, and what the keeper passes on to tries leaves remains in
the keeper's. So the keeper forks this process when it is warm, before it hears of any try, and has it fork templates:
they are as warm, and find nothing of others in their memory. It also watches over the keeper, in case that stands
still (`sandbox.supervision.lifeline`).

    keeper ──asks──▶ zygote ──fork──▶ midwife ──fork──▶ template, or a try that loads its file itself
                       │                 │ passes on, if the file does not look plain
                       └──fork──▶ full zygote ──fork──▶ midwife ──fork──▶ template, …

The midwife tells the keeper the number of the new process and is gone at once. So the keeper, a subreaper, becomes the
parent, and knows the number before it is that. It also is the one that reads the file's text, so that nothing of that
stays. A zygote that dies takes no template along: the keeper executes a new one, `python -P -m sandbox.zygote`.

What only some tasks need (Jinja, pendulum) is loaded by the full zygote, so that the forks of the others are smaller.
"""

import argparse
import logging
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from asynsched.authoring.timezone import set_default_timezone
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.home_files import read_source
from asynsched.protocol.messages import CodeVersion
from sandbox.confinement import kernel
from sandbox.running.loading import freeze_heap
from sandbox.running.try_logging import configure_logging
from sandbox.running.warming import warm
from sandbox.sources.plainness import looks_plain
from sandbox.supervision.children import die_with, set_readable
from sandbox.supervision.full_zygote import READY, FullZygote, FullZygoteGoneError
from sandbox.supervision.lifeline import Watchdog
from sandbox.template import Born, TemplateStart, become_template, keep_only
from sandbox.titles import set_title

log = logging.getLogger("sandbox.zygote")

NAME = b"zygote"
"""Of its process, as `ps` shows it."""
FULL_NAME = b"zygote-full"
TEMPLATE = b"t"
LONE_TRY = b"l"
"""What the keeper asks for: one of these bytes, with the descriptors of an `Errand`."""
_GO = b"g"
_FULL_IS_GONE = 2
"""Exit code of a midwife."""


class Errand(NamedTuple):
    """The descriptors that come with a request.

    Attributes:
        channel: The new process's end of its connection to the keeper.
        output: Takes what the file writes while it is imported.
        code: An open file that holds the version to be loaded.
    """

    channel: int
    output: int
    code: int


class ZygoteStart(NamedTuple):
    """What a zygote works with. `channel` brings the keeper's requests, `alarm` is the timer that it shares with it.

    An older keeper, which goes on after an upgrade, has no alarm.
    """

    channel: socket.socket
    lifeline: int
    alarm: int | None
    sources_folder: Path
    keeper: int


def become_zygote(start: ZygoteStart) -> NoReturn:
    """Serve the keeper until it hangs up. Never returns: the frames of who called stay below."""
    try:
        die_with(start.keeper)
        keep_only(start.channel.fileno(), start.lifeline, *_given(start.alarm))
        name = kernel.process_name()
        full = FullZygote(start.lifeline, partial(_serve_as_full, start, name))
        Zygote(start, name, full).serve()
    except BaseException:
        log.exception("The zygote failed")
    finally:
        os._exit(1)


def _serve_as_full(start: ZygoteStart, name: bytes, channel: socket.socket) -> None:
    """Be the full zygote, which its zygote asks, and which watches over nobody."""
    Zygote(start._replace(channel=channel, alarm=None), name, None).serve()


class KeeperKilledError(Exception):
    """The keeper stood still for too long."""


class Zygote:
    """Forks whenever the keeper asks, and kills a keeper that lets its alarm ring.

    Args:
        name: Of the processes that it forks, as `ps` shows them.
        full: Takes what is not for plain files; None: this has everything loaded.
    """

    def __init__(self, start: ZygoteStart, name: bytes, full: FullZygote | None) -> None:
        self._start = start
        self._name_of_others = name
        self._full = full
        self._watchdog = None if start.alarm is None else Watchdog(start.keeper, start.alarm)

    def serve(self) -> None:
        """Fork until the keeper hangs up, or has to be killed."""
        set_readable(readable=False)
        kernel.set_process_name(FULL_NAME if self._full is None else NAME)
        set_title("full zygote" if self._full is None else "zygote")
        freeze_heap()
        if self._full is not None:
            self._full.is_there()
        else:
            self._start.channel.sendall(READY)
        with suppress(KeeperKilledError):
            self._wait_for(self._start.channel.fileno())
            while self.serve_one():
                self._wait_for(self._start.channel.fileno())

    def _wait_for(self, descriptor: int) -> None:
        """Wait until there is something to read, and watch over the keeper meanwhile.

        Raises:
            KeeperKilledError: It had to be killed.
        """
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if self._watchdog is not None:
            poll.register(self._watchdog.alarm, select.POLLIN)
        while True:
            ready = {readable for readable, _ in poll.poll()}
            if self._watchdog is not None and self._watchdog.alarm in ready and self._watchdog.bite():
                raise KeeperKilledError
            if descriptor in ready:
                return

    def serve_one(self) -> bool:
        """Take a request, and fork. Returns False when the keeper has hung up."""
        n_descriptors = len(Errand._fields)
        kind, descriptors, _, _ = socket.recv_fds(self._start.channel, 1, n_descriptors, socket.MSG_CMSG_CLOEXEC)
        try:
            if len(descriptors) == n_descriptors:
                self._fork(kind, Errand(*descriptors))
            elif kind:
                log.error("No process was forked for a DAG file: no descriptors are left")
        except OSError:
            log.exception("No process could be forked for a DAG file")
        finally:
            # Where nothing came of it, the keeper sees that the errand's channel is closed.
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(kind)

    def _fork(self, kind: bytes, errand: Errand) -> None:
        """Have a process made that is the keeper's child, here or by the full zygote."""
        full = self._full if self._full is not None and self._full.is_there() else None
        if self._have_made(kind, errand, full) == _FULL_IS_GONE and full is not None:
            full.lose()
            self._have_made(kind, errand, full if full.is_there() else None)

    def _have_made(self, kind: bytes, errand: Errand, full: FullZygote | None) -> int:
        """Fork a midwife, and return how it exits. What it has made goes on then."""
        waits, gives_way = os.pipe()
        try:
            midwife = os.fork()
            if midwife == 0:
                self._deliver(kind, errand, full, waits, gives_way)
            status = self._exit_code(midwife)
            if status == 0:
                with suppress(BrokenPipeError):
                    os.write(gives_way, _GO)
            return status
        finally:
            os.close(waits)
            os.close(gives_way)

    def _exit_code(self, midwife: int) -> int:
        """Wait for a midwife. It reads the file's text, and the disk may hang."""
        descriptor = _pidfd(midwife)
        if descriptor is not None:
            try:
                self._wait_for(descriptor)
            finally:
                os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(midwife, 0)[1])

    def _deliver(self, kind: bytes, errand: Errand, full: FullZygote | None, waits: int, gives_way: int) -> NoReturn:
        status = 1
        try:
            if full is None or self._looks_plain(errand) or not full.ask(kind, errand):
                pid = os.fork()
                if pid == 0:
                    os.close(gives_way)
                    self._grow_up(kind, errand, waits)
                with socket.socket(fileno=os.dup(errand.channel)) as channel:
                    channel.sendall(encode_frame(Born(pid)))
            status = 0
        except FullZygoteGoneError:
            status = _FULL_IS_GONE
        except BaseException:
            log.exception("No process could be forked for a DAG file")
        finally:
            os._exit(status)

    def _looks_plain(self, errand: Errand) -> bool:
        sources, folder = _code_of(errand).sources, self._start.sources_folder
        try:
            texts = [read_source(folder, source.content_hash) for source in sources]
        except (OSError, ValueError):
            return False  # who loads it says what is wrong
        return looks_plain(texts, [source.module for source in sources])

    def _grow_up(self, kind: bytes, errand: Errand, waits: int) -> NoReturn:
        try:
            if os.read(waits, 1) != _GO:
                # Nobody knows of this process, or nobody is left: the machine's doing, not the file's.
                os.kill(os.getpid(), signal.SIGKILL)
            kernel.set_process_name(self._name_of_others)
            become_template(
                TemplateStart(
                    _code_of(errand),
                    self._start.sources_folder,
                    socket.socket(fileno=errand.channel),
                    errand.output,
                    self._start.lifeline,
                    self._start.keeper,
                    is_lone_try=kind == LONE_TRY,
                )
            )
        except BaseException:
            log.exception("A process that was to load a DAG file failed")
        finally:
            os._exit(1)


def _code_of(errand: Errand) -> CodeVersion:
    with os.fdopen(os.dup(errand.code), "rb") as file:
        file.seek(0)
        return msgspec.json.decode(file.read(), type=CodeVersion)


def _pidfd(process: int) -> int | None:
    """Return what becomes readable when a process ends; None if no descriptor is left."""
    try:
        return os.pidfd_open(process)
    except OSError:
        return None


def _given(alarm: int | None) -> tuple[int, ...]:
    return () if alarm is None else (alarm,)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Get as warm as the keeper was, and serve it: a zygote before this one has died."""
    # While it gets warm, other processes of this user run already.
    set_readable(readable=False)
    parser = argparse.ArgumentParser(prog="python -P -m sandbox.zygote", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="folder of the scheduler's state")
    parser.add_argument("--channel", type=int, required=True, help="descriptor that brings the keeper's requests")
    parser.add_argument("--lifeline", type=int, required=True, help="descriptor that ties tries to the keeper")
    parser.add_argument("--alarm", type=int, help="descriptor of the keeper's alarm")
    parser.add_argument("--keeper", type=int, required=True, help="the keeper's process")
    parser.add_argument("--default-timezone", default="UTC", help="zone of naive dates in DAG files")
    options = parser.parse_args(arguments)
    set_title("zygote", "--home", str(options.home))
    die_with(options.keeper)
    given = (options.channel, options.lifeline, *_given(options.alarm))
    keep_only(*given)
    for descriptor in given:
        os.set_inheritable(descriptor, False)
    configure_logging()
    warm()
    set_default_timezone(options.default_timezone)
    channel = socket.socket(fileno=options.channel)
    become_zygote(ZygoteStart(channel, options.lifeline, options.alarm, options.home / "sources", options.keeper))


if __name__ == "__main__":
    main()
