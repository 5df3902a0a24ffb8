"""Loads what tries need before anything is forked, and rehearses a try: what is done here is done in no try."""

import signal
import socket
from datetime import UTC, datetime

from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import DAG
from asynsched.authoring.supervisor import set_supervisor
from asynsched.authoring.taskflow.decorators import task
from sandbox.frames import encode_frame
from sandbox.protocol import CodeVersion, Launch, RunContext
from sandbox.run import run_launch
from sandbox.running.loading import LoadedFile, freeze_heap, import_authoring
from sandbox.running.scheduler_link import SchedulerLink
from sandbox.running.try_logging import logging_nowhere
from sandbox.supervision.children import set_readable

_NEEDED_WITHIN_FUNCTIONS = (
    "inspect", "jinja2", "jinja2.nativetypes", "pendulum", "pendulum.locales.en.locale", "subprocess", "tempfile",
    "traceback", "typing", "zoneinfo",
)  # fmt: skip
"""Modules that the authoring names import only when they are used."""
_N_REHEARSALS = 10
"""After so many, what the interpreter adapts at run time has adapted."""


def warm() -> None:
    """Import everything that a task commonly needs, rehearse a try, and settle the heap for forking."""
    import_authoring(_NEEDED_WITHIN_FUNCTIONS)
    rehearse()
    freeze_heap()


def rehearse() -> None:
    """Run a task of our own as a try is run, in this process.

    So decoders are made, caches filled and functions adapted once: each of them would write to memory that a fork
    shares with its parent, a page at a time.
    """
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with DAG("rehearsal", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:
        task(_nothing, task_id="nothing")("{{ ds }}")
    file = LoadedFile({dag.dag_id: dag})
    try:
        with logging_nowhere():
            for _ in range(_N_REHEARSALS):
                _rehearse_once(file, dag)
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)
        set_supervisor(None)
        forget_registered()


def _rehearse_once(file: LoadedFile, dag: DAG) -> None:
    now = datetime.now(UTC)
    run = RunContext(dag.dag_id, "manual__rehearsal", "manual", now, now, now, now)
    launch = Launch("0" * 32, "nothing", -1, 1, 0, run, CodeVersion("", ""), "")
    keeper, ours = socket.socketpair()
    with keeper, ours:
        keeper.sendall(encode_frame(launch))
        keeper.shutdown(socket.SHUT_WR)  # nobody answers
        link = SchedulerLink(ours)
        ended = run_launch(link.receive_launch(), link, file)
        assert ended.state == "success", ended.reason
        link.send(ended)
    set_readable(readable=True)


def _nothing(value: str, run_id: str | None = None) -> list[str | None]:
    return [value, run_id]
