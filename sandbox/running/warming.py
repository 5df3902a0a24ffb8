"""Loads the modules that tries need and rehearses a try before the first fork, so that no try does this work.

A try that is the first to run a function, or to use a module, writes to pages of memory that it shares with its parent,
and the kernel copies each of them. Without rehearsals a plain try takes 1.3 of its CPU time.
"""

import importlib
import os
import signal
import socket
from datetime import UTC, datetime

from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import DAG
from asynsched.authoring.supervisor import set_supervisor
from asynsched.authoring.taskflow import task
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import CodeVersion, Launch, RunContext
from sandbox.run import run_launch
from sandbox.running.loading import LoadedFile, freeze_heap, import_authoring
from sandbox.running.scheduler_link import SchedulerLink
from sandbox.running.try_logging import logging_nowhere
from sandbox.titles import of_launch, set_title

_NEEDED_BY_ALL = ("inspect", "traceback", "typing")
"""Modules that the authoring names import only when they are used."""
_NEEDED_BY_SOME = (
    "jinja2", "jinja2.nativetypes", "pendulum", "pendulum.locales.en.locale", "subprocess", "tempfile", "zoneinfo",
)  # fmt: skip
"""The same for tasks that look at more than their arguments: a quarter of the memory."""
_N_REHEARSALS = 10
"""After that many, the interpreter has specialised the functions."""


def warm() -> None:
    """Import everything that each task needs, rehearse a try, and settle the heap for forking."""
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
    with DAG("rehearsal", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:
        task(_nothing, task_id="nothing")(argument)
    file = LoadedFile({dag.dag_id: dag})
    try:
        with logging_nowhere():
            for _ in range(_N_REHEARSALS):
                _rehearse_once(file, dag)
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
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
