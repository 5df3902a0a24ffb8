"""The zygotes: they fork the processes that load DAG files, and have never seen a secret.

A fork has all the memory of its parent, and secrets that the keeper passes on to tries leave traces in its memory. So
the keeper forks these processes once it is warm, before it hears of any try, and asks them for templates, which are as
warm and have nothing of other tries in their memory.

    keeper ──asks──▶ zygote ──fork──▶ go-between ──fork──▶ template, or a try that loads its file itself

The go-between tells the keeper the number of the new process, and exits. So the keeper, a subreaper, becomes the
parent, and knows the number before that. A zygote that dies takes no template along: the keeper executes a new one,
`python -P -m sandbox.zygote`, for a fork of the keeper would have its memory of that moment.
`sandbox/supervision/zygote_handle.py` is the keeper's side.

There are two. The *full zygote* has loaded everything that tasks commonly need. The *plain zygote*, for versions whose
tasks look at nothing but their arguments (`CodeVersion.is_plain`), has neither Jinja nor pendulum, so that its forks
are smaller: the hop between two such tasks takes about four fifths of the time. The plain zygote stands in for a full
one that hangs or dies (`TemplatePool`), and watches the keeper, in case it stalls (`sandbox.supervision.lifeline`).

They load the modules that tries need and rehearse a try, so that no try does this work. A try that is the first to run
a function, or to use a module, writes to pages of memory that it shares with its parent, and the kernel copies each of
them. Without rehearsals a plain try takes 1.3 of its CPU time.
"""

import argparse
import importlib
import json
import logging
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from asynsched.airflow.finder import serve_airflow
from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import DAG
from asynsched.authoring.supervisor import set_supervisor
from asynsched.authoring.taskflow import task
from asynsched.authoring.timezone import set_default_timezone
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import CodeVersion, Launch, RunContext
from sandbox.confinement import kernel
from sandbox.loading import LoadedFile, freeze_heap, import_authoring
from sandbox.processes import (
    configure_logging,
    die_with,
    keep_only,
    logging_nowhere,
    of_launch,
    set_readable,
    set_title,
)
from sandbox.run import SchedulerLink, run_launch
from sandbox.supervision.lifeline import Watchdog
from sandbox.template import Born, TemplateStart, become_template

log = logging.getLogger("sandbox.zygote")
TEMPLATE = b"t"
LONE_TRY = b"l"
"""The keeper's requests: one of these bytes, with the descriptors of an `Errand`."""
_GO = b"g"


class Errand(NamedTuple):
    """The descriptors that come with a request."""

    channel: int
    """The new process's end of its connection to the keeper."""
    output: int
    """Takes the file's output during its import."""
    code: int
    """An open file that holds the version to be loaded."""


class ZygoteStart(NamedTuple):
    """The input of a zygote. `channel` brings the keeper's requests.

    `alarm` is the timer that it shares with the keeper, if it watches over that.
    """

    channel: socket.socket
    lifeline: int
    alarm: int | None
    sources_folder: Path
    keeper: int
    is_plain: bool


def become_zygote(start: ZygoteStart) -> NoReturn:
    """Serve the keeper until it hangs up. Never returns: the frames of the caller stay below."""
    try:
        die_with(start.keeper)
        keep_only(start.channel.fileno(), start.lifeline, *given_alarm(start.alarm))
        Zygote(start, kernel.process_name()).serve()
    except BaseException:
        log.exception("The zygote failed")
    finally:
        os._exit(1)


class Zygote:
    """Forks whenever the keeper asks, and kills a keeper that lets its alarm ring. Forks get the name, as in `ps`."""

    def __init__(self, start: ZygoteStart, name: bytes) -> None:
        self._start = start
        self._name_of_others = name
        self._watchdog = None if start.alarm is None else Watchdog(start.keeper, start.alarm)

    def serve(self) -> None:
        """Fork until the keeper hangs up, or has to be killed."""
        set_readable(readable=False)
        kernel.set_process_name(b"zygote" if self._start.is_plain else b"zygote-full")
        if not self._start.is_plain:
            try:
                warm_fully()
            except Exception:
                log.exception("Tasks import Jinja and pendulum themselves, because they cannot be loaded beforehand")
        set_title("zygote" if self._start.is_plain else "full zygote")  # rehearsals leave their own
        freeze_heap()
        while self._wait() and self.serve_one():
            pass

    def _wait(self) -> bool:
        """Wait for a request, and watch over the keeper meanwhile. Returns False when it had to be killed."""
        poll = select.poll()
        poll.register(self._start.channel, select.POLLIN)
        if self._watchdog is not None:
            poll.register(self._watchdog.alarm, select.POLLIN)
        while True:
            ready = {readable for readable, _ in poll.poll()}
            if self._watchdog is not None and self._watchdog.alarm in ready and self._watchdog.kill_late_keeper():
                return False
            if self._start.channel.fileno() in ready:
                return True

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
        """Fork a process that is the keeper's child. It waits until the go-between is gone."""
        waits, gives_way = os.pipe()
        try:
            go_between = os.fork()
            if go_between == 0:
                self._go_between(kind, errand, waits, gives_way)
            if os.waitpid(go_between, 0)[1] == 0:
                with suppress(BrokenPipeError):
                    os.write(gives_way, _GO)
        finally:
            os.close(waits)
            os.close(gives_way)

    def _go_between(self, kind: bytes, errand: Errand, waits: int, gives_way: int) -> NoReturn:
        status = 1
        try:
            pid = os.fork()
            if pid == 0:
                os.close(gives_way)
                self._become_template(kind, errand, waits)
            with socket.socket(fileno=os.dup(errand.channel)) as channel:
                channel.sendall(encode_frame(Born(pid)))
            status = 0
        except BaseException:
            log.exception("No process could be forked for a DAG file")
        finally:
            os._exit(status)

    def _become_template(self, kind: bytes, errand: Errand, waits: int) -> NoReturn:
        try:
            if os.read(waits, 1) != _GO:
                # The keeper does not know this process, or is gone: the machine's fault, not the file's.
                os.kill(os.getpid(), signal.SIGKILL)
            kernel.set_process_name(self._name_of_others)
            code = msgspec.json.decode(os.pread(errand.code, os.fstat(errand.code).st_size, 0), type=CodeVersion)
            channel, start = socket.socket(fileno=errand.channel), self._start
            become_template(
                TemplateStart(
                    code, start.sources_folder, channel, errand.output, start.lifeline, start.keeper, kind == LONE_TRY
                )
            )
        except BaseException:
            log.exception("A process that was to load a DAG file failed")
        finally:
            os._exit(1)


def given_alarm(alarm: int | None) -> tuple[int, ...]:
    """Return the descriptor of the alarm that a zygote gets, if any."""
    return () if alarm is None else (alarm,)


_NEEDED_BY_ALL = ("inspect", "traceback", "typing")
"""Modules that the authoring names import only when they are used."""
_NEEDED_BY_SOME = (
    "jinja2", "jinja2.nativetypes", "pendulum", "pendulum.locales.en.locale", "subprocess", "tempfile", "zoneinfo",
)  # fmt: skip
"""The same for tasks that look at more than their arguments: a quarter of the memory."""
_N_REHEARSALS = 10
"""After that many, the interpreter has specialised the functions."""


def warm() -> None:
    """Import everything that each task needs, rehearse a try, and freeze the heap for forking."""
    import_authoring(_NEEDED_BY_ALL)
    _rehearse("text")
    freeze_heap()


def warm_fully() -> None:
    """Do so for tasks that render templates, look at the instants of their run, or start programs. Needs `warm`."""
    for name in _NEEDED_BY_SOME:
        importlib.import_module(name)
    _rehearse("{{ ds }}")
    freeze_heap()


def _rehearse(argument: str) -> None:
    """Run a task of our own in this process as a try is run: make decoders, fill caches, specialise functions."""
    on_sigterm, environment = signal.getsignal(signal.SIGTERM), dict(os.environ)
    # A SIGTERM from outside is for this process, and no end of the rehearsed try: it has its effect afterwards.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with DAG("rehearsal", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:
        task(_nothing, task_id="nothing")(argument)
    file = LoadedFile({dag.dag_id: dag})
    try:
        with logging_nowhere():
            for _ in range(_N_REHEARSALS):
                _rehearse_once(file, dag)
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        set_supervisor(None)
        forget_registered()


def _rehearse_once(file: LoadedFile, dag: DAG) -> None:
    now = datetime.now(UTC)
    run = RunContext(dag.dag_id, "manual__rehearsal", "manual", now, now, now, now)
    launch = Launch("0" * 32, "nothing", -1, 1, 0, run, CodeVersion("", ""), "")
    keeper, ours = socket.socketpair()
    with keeper, ours:
        keeper.sendall(encode_frame(launch))
        keeper.shutdown(socket.SHUT_WR)  # no answer will come
        link = SchedulerLink(ours)
        received = link.receive_launch()
        set_title(of_launch(received))
        ended = run_launch(received, link, file)
        assert ended.state == "success", ended.reason
        link.send(ended)


def _nothing(value: str, run_id: str | None = None) -> list[str | None]:
    return [value, run_id]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Get as warm as the keeper was, and serve it: a zygote before this one has died."""
    # While it gets warm, other processes of this user run already.
    set_readable(readable=False)
    parser = argparse.ArgumentParser(prog="python -P -m sandbox.zygote", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="folder of the scheduler's state")
    parser.add_argument("--channel", type=int, required=True, help="descriptor that brings the keeper's requests")
    parser.add_argument("--lifeline", type=int, required=True, help="descriptor that ties tries to the keeper")
    parser.add_argument("--alarm", type=int, help="descriptor of the keeper's alarm; older keepers have none")
    parser.add_argument("--keeper", type=int, required=True, help="the keeper's process")
    parser.add_argument("--default-timezone", default="UTC", help="zone of naive dates in DAG files")
    parser.add_argument("--airflow", default="ours", help="what `import airflow` gives to DAG files")
    parser.add_argument("--airflow-options", type=json.loads, default={}, help="what `conf` answers, as JSON")
    parser.add_argument("--plain", action="store_true", help="serve versions whose tasks need no Jinja or pendulum")
    options = parser.parse_args(arguments)
    set_title("zygote", "--home", str(options.home))
    die_with(options.keeper)
    given = (options.channel, options.lifeline, *given_alarm(options.alarm))
    keep_only(*given)
    for descriptor in given:
        os.set_inheritable(descriptor, False)
    configure_logging()
    warm()
    set_default_timezone(options.default_timezone)
    serve_airflow(options.airflow, options.airflow_options)
    channel, sources = socket.socket(fileno=options.channel), options.home / "sources"
    become_zygote(
        ZygoteStart(channel, options.lifeline, options.alarm, sources, options.keeper, is_plain=options.plain)
    )


if __name__ == "__main__":
    main()
