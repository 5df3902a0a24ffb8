"""The keeper: `python -P -m sandbox.keeper --home HOME`, supervisor of every local try of one scheduler.

It outlives the scheduler: a scheduler that is killed and starts again on the same home takes it and its tries back.
When none comes until the lease and its grace are over, it ends its tries, and itself. It never runs user code. It has
one thread and no asyncio, so that its forks are clean and small. It forks the zygotes only, before it hears of any try,
so that no process of a try has memory in which secrets of others were.

This module starts it; `sandbox/supervision/keeper.py` is its work. The scheduler's side is
`executors/keeper_connection.py`, which starts it and speaks with it, `executors/local.py`, which drives it, and
`lease/keeper_line.py`, which tells it of the lease.

    keeper ──fork──▶ zygotes ──fork──▶ template (a version of a DAG file, loaded) ──fork──▶ try
                        └───────────fork──────────▶ try of a file that cannot be forked once it is loaded
"""

import argparse
import fcntl
import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from asynsched.airflow.finder import serve_airflow
from asynsched.authoring.timezone import set_default_timezone
from asynsched.protocol.home_files import KEEPER_LOCK, KEEPER_MARK
from asynsched.protocol.messages import LONGEST_REASON, READY
from sandbox.processes import adopt_orphans, configure_logging, hear_of_children, set_readable, set_title
from sandbox.supervision.lifeline import Alarm, sweep
from sandbox.supervision.zygote_handle import ZygoteHandle, Zygotes
from sandbox.zygote import warm

if TYPE_CHECKING:
    from sandbox.supervision.keeper import Keeper

log = logging.getLogger("sandbox.keeper")

DEEPEST = 700
"""Python's limit of recursion here. It is below the usual one: a value that the keeper can decode, the scheduler can
decode as well, whose stack is higher. It is above the deepest frame (`asynsched.protocol.frames.DEEPEST`) by more than
the keeper's own stack."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Detach from the starting process, take the home's lock, and keep its tries."""
    options = _options(arguments)
    hear_of_children()
    if os.fork():
        # The keeper is not a child of a scheduler, which may die or restart.
        os._exit(0)
    try:
        keeper, lock = _started(options)
    except BaseException as exc:
        log.exception("The keeper failed")
        _tell(options.ready, f"{type(exc).__name__}: {exc}".encode(errors="backslashreplace"))
        os._exit(1)
    try:
        _tell(options.ready, READY)
        keeper.serve()
        os.ftruncate(lock, 0)
    except BaseException:
        log.exception("The keeper failed")
        os._exit(1)
    os._exit(0)


def _started(options: argparse.Namespace) -> "tuple[Keeper, int]":
    """Return a keeper that takes connections, and the lock on its home, which has its name."""
    # Before it gets warm: user code that an earlier keeper has left behind may still run.
    set_readable(readable=False)
    set_title("keeper", "--home", str(options.home))
    lock = os.open(options.home / KEEPER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # waits until no other keeper of this home is left
    previous = os.pread(lock, 64, 0).decode().strip()
    if previous:
        sweep(previous)
    os.ftruncate(lock, 0)
    os.pwrite(lock, os.environ[KEEPER_MARK].encode(), 0)
    lifeline, _writing_end = os.pipe()
    adopt_orphans()
    configure_logging()
    warm()
    set_title("keeper")
    set_default_timezone(options.default_timezone)
    serve_airflow(options.airflow, options.airflow_options)
    alarm = Alarm()
    user_code = (
        "--default-timezone", options.default_timezone, "--airflow", options.airflow,
        "--airflow-options", json.dumps(options.airflow_options),
    )  # fmt: skip
    zygotes = Zygotes(
        plain=ZygoteHandle(options.home, lifeline, alarm, user_code, is_plain=True),
        full=ZygoteHandle(options.home, lifeline, None, user_code, is_plain=False),
    )
    # Zygotes do not need this, and every try has a copy of their memory.
    from sandbox.supervision.keeper import Keeper

    sys.setrecursionlimit(DEEPEST)
    return Keeper(options, zygotes, alarm), lock


def _tell(descriptor: int, text: bytes) -> None:
    """Tell the process that started this keeper how that went."""
    with suppress(BrokenPipeError):
        # A scheduler that died meanwhile may have a successor, which finds this keeper.
        os.write(descriptor, text[:LONGEST_REASON])
    os.close(descriptor)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m sandbox.keeper", description=__doc__)
    for name, kind, what in (
        ("home", Path, "folder of the scheduler's state"),
        ("ready", int, "descriptor that is told once schedulers may connect"),
        ("lease-seconds", float, "lease of a scheduler that has just connected"),
        ("lease-grace", float, "how long tries go on after a lease"),
        ("kill-time", float, "time from SIGTERM to SIGKILL"),
        ("import-timeout", float, "longest import of a DAG file"),
        ("default-timezone", str, "zone of naive dates in DAG files"),
        ("airflow", str, "what `import airflow` gives to DAG files"),
        ("airflow-options", json.loads, "what `conf` of Airflow answers, as JSON"),
        ("log-bytes", int, "largest log of a try"),
    ):
        parser.add_argument(f"--{name}", type=kind, required=True, help=what)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
