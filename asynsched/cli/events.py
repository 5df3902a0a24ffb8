"""`asynsched events`: the changes of runs and task instances as they are stored."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import anyio
import click
import msgspec

from asynsched.cli.command import command, completes
from asynsched.cli.lookup import known_dag_of
from asynsched.cli.output import Output, cell, printable
from asynsched.cli.session import Session
from asynsched.clock import Clock
from asynsched.errors import StoreUnavailable, ungrouped
from asynsched.keys import instance_name
from asynsched.queries.events import Change, EventReader, Missed
from asynsched.queries.listening import start_feed
from asynsched.queries.runs import run_named
from asynsched.store.engines.opening import open_as_set

RETRY_PAUSE = timedelta(seconds=1)


@command("events")
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=completes("run"))
@click.option(
    "--since", type=click.IntRange(0, 2**63 - 1), metavar="N",
    help="Begin after the event with this number; 0: with the oldest stored one. By default with the present.",
)  # fmt: skip
def events(session: Session, output: Output, dag_id: str | None, run_id: str | None, since: int | None) -> None:
    """Follow the changes of runs and task instances, each once it is stored, until you press Ctrl-C.

    Each change is a line; with --output json, an object with a `number` for --since. If changes are not stored any
    more, or come faster than they are read, a line says after which number the output goes on.
    """
    if dag_id is not None:
        known_dag_of(session, dag_id)
        run_id = run_id and session.read(run_named, dag_id, run_id).run_id
    _ = session.database  # fails with advice if it does not exist
    with ungrouped():
        asyncio.run(_follow(session, since, dag_id, run_id, _as_json if output is Output.JSON else _as_line))


async def _follow(
    session: Session, since: int | None, dag_id: str | None, run_id: str | None,
    shown: Callable[[Change | Missed], str],
) -> None:  # fmt: skip
    clock = Clock()
    database = await open_as_set(session.settings)
    try:
        async with anyio.create_task_group() as tasks:
            feed = await start_feed(tasks, session.settings, database, clock)
            await _write(feed.read(since, dag_id=dag_id, run_id=run_id), shown, clock)
            tasks.cancel_scope.cancel()
    finally:
        await database.close()


async def _write(reader: EventReader, shown: Callable[[Change | Missed], str], clock: Clock) -> None:
    """Write each event; go on after an outage of the database."""
    with closing(reader):
        while True:
            try:
                event = await anext(reader)
            except StoreUnavailable:
                await clock.sleep(RETRY_PAUSE)
                continue
            except StopAsyncIteration:
                return
            sys.stdout.write(f"{shown(event)}\n")
            sys.stdout.flush()


def _as_json(event: Change | Missed) -> str:
    return msgspec.json.encode(event).decode()


def _as_line(event: Change | Missed) -> str:
    if isinstance(event, Missed):
        return f"Changes were left out: the output goes on after number {event.go_on_at}."
    what = f"{event.run_id} of {event.dag_id}"
    if event.task_id:
        what = f"{instance_name(event.task_id, event.map_index)} (try {event.try_number}) of {what}"
    reason = f": {event.reason}" if event.reason else ""
    return printable(f"{event.number} {cell(event.at)} {what} {event.state or 'has no state'}{reason}")
