"""`asynsched assets …`: assets, their events, and reports that an asset was updated."""

import click

from asynsched.cli.command import command, completes, dag_argument
from asynsched.cli.dags import conf_option, queue_run, read_conf
from asynsched.cli.lookup import asset_of, dag_of
from asynsched.cli.output import Done, Listing, Record, are, as_row, fields_of
from asynsched.cli.session import Session
from asynsched.queries import assets as queries
from asynsched.queries.assets import AssetInfo, EventFilter, Watching
from asynsched.scheduling.creation.wanted_run import Trigger

asset_argument = click.argument("asset", metavar="NAME|URI")
COLUMNS = ("name", "uri", "group", "last_event_at", "updated_by", "awaited_by", "watched_by")
ALIAS_COLUMNS = ("name", "group", "assets")
EVENT_COLUMNS = (
    "id", "name", "created_at", "extra", "source_dag_id", "source_run_id", "source_task_id", "source_map_index",
    "partition_key", "aliases",
)  # fmt: skip
USUAL_EVENT_COLUMNS = tuple(name for name in EVENT_COLUMNS if name not in ("source_map_index", "aliases"))
SPARE_EVENT_COLUMNS = ("source_map_index", "aliases", "partition_key", "id", "source_run_id")
WATCHER_COLUMNS = ("watcher", "trigger", "state", "error", "failed_at", "dag_id", "scheduler_id")
SPARE_WATCHER_COLUMNS = ("scheduler_id", "failed_at", "dag_id")
QUEUED_COLUMNS = ("dag_id", "asset", "created_at")
REFERENCE_COLUMNS = ("role", "dag_id", "task_id", "kind")
SHOWN_EVENTS = 10
"""Events that `show` lists."""


@command("list", tables=True)
@click.option("--alias", is_flag=True, help="List aliases instead, with the assets that each one has stood for.")
def assets_list(session: Session, alias: bool) -> Listing:
    """List the assets that DAGs or events name."""
    if alias:
        return Listing(ALIAS_COLUMNS, session.read(queries.list_aliased_assets), "There are no asset aliases.")
    watchers = session.read(queries.list_watchers)
    found = session.pages(queries.list_assets, queries.AssetFilter())
    usual = COLUMNS if watchers else COLUMNS[:-1]
    derived = {
        "updated_by": lambda asset: _dags(asset, "outlet"), "awaited_by": lambda asset: _dags(asset, "schedule"),
        "watched_by": lambda asset: _states(asset, watchers),
    }  # fmt: skip
    spare = ("group", "uri", "last_event_at")
    return Listing(COLUMNS, found, "There are no assets.", derived=derived, usual=usual, spare=spare)


@command("show", tables=True)
@asset_argument
def assets_show(session: Session, asset: str) -> Record:
    """Show an asset: its watchers, the DAGs and tasks that name it, its last events, the DAGs it wakes, its state."""
    found = asset_of(session, asset)
    details = session.read(queries.asset_details, found)
    events = session.pages(queries.list_events, EventFilter(asset_id=found.id), at_most=SHOWN_EVENTS)
    watchers = [fields_of(watcher, WATCHER_COLUMNS) for watcher in details.watchers]
    more = {"waiting_dags": details.waiting_dags, "watchers": watchers, "state": details.state}
    table = {
        **fields_of(found, ("name", "uri", "group", "extra", "created_at")),
        "aliases": [alias.name for alias in found.aliases],
        "references": [fields_of(reference, REFERENCE_COLUMNS) for reference in details.references],
        "events": [fields_of(event, EVENT_COLUMNS) for event in events],
    }
    sections = {"watchers": SPARE_WATCHER_COLUMNS, "references": (), "events": SPARE_EVENT_COLUMNS, "state": ()}
    return Record({**as_row(found), "events": events, **more}, sections=sections, table={**table, **more})


@command("events", tables=True)
@click.argument("asset", metavar="[ASSET]", required=False)
@click.option("--alias", metavar="NAME", help="Only events that came through this alias.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="List at most this many.")
def assets_events(session: Session, asset: str | None, alias: str | None, limit: int) -> Listing:
    """List events, of one asset (its name or URI) or of all, newest first."""
    found = None if asset is None else asset_of(session, asset)
    wanted = EventFilter(asset_id=None if found is None else found.id, alias=alias)
    events = session.pages(queries.list_events, wanted, at_most=limit)
    return Listing(EVENT_COLUMNS, events, "There are no events.", usual=USUAL_EVENT_COLUMNS, spare=SPARE_EVENT_COLUMNS)


@command("event")
@asset_argument
@click.option("--extra", metavar="JSON", help="An object that describes the update; tasks find it in the event.")
@click.option("--partition-key", metavar="KEY", help="The partition that was updated.")
def assets_event(session: Session, asset: str, extra: str | None, partition_key: str | None) -> Done:
    """Report an update of an asset, for which DAGs may be waiting."""
    told = read_conf(extra, "--extra")
    found = asset_of(session, asset, make=True)
    dag_ids = session.act(queries.report_update, found.id, told, partition_key=partition_key, now=session.now())
    waiting = f"It waits for {', '.join(dag_ids)}." if dag_ids else "No DAG waits for it."
    return Done(f"Asset {found.name!r} was updated. {waiting}", {"name": found.name, "uri": found.uri, "dags": dag_ids})


@command("materialize")
@asset_argument
@conf_option
def assets_materialize(session: Session, asset: str, conf: str | None) -> Done:
    """Trigger the only DAG with a task that updates an asset."""
    found = asset_of(session, asset, make=True)
    content = read_conf(conf)
    dag_id = session.read(queries.only_producer, found.id)
    run = queue_run(session, dag_id, Trigger(conf=content))
    sentence = f"Run {run.run_id!r} of the DAG {dag_id!r} is queued; it updates {found.name!r}."
    return Done(sentence, as_row(run))


@command("queued", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
def assets_queued(session: Session, dag_id: str | None) -> Listing:
    """List the assets whose events wait for a run of a DAG, or of any: the run waits for other assets, too."""
    if dag_id is not None:
        dag_of(session, dag_id)
    names = {found.id: found.name for found in session.pages(queries.list_assets, queries.AssetFilter())}
    rows = session.pages(queries.list_queued, queries.QueuedFilter(dag_id=dag_id))
    derived = {"asset": lambda one: names.get(one.asset_id, "")}
    return Listing(QUEUED_COLUMNS, rows, "No event waits for a run.", derived=derived)


@command("unqueue")
@dag_argument
@click.argument("asset", metavar="[NAME|URI]", required=False)
def assets_unqueue(session: Session, dag_id: str, asset: str | None) -> Done:
    """Forget the events that wait for a run of a DAG: of one asset, or of all."""
    dag_of(session, dag_id)
    asset_id = None if asset is None else asset_of(session, asset).id
    n = session.act(queries.delete_queued, dag_ids=(dag_id,), asset_id=asset_id)
    return Done(f"{are(n, 'event')} no longer queued for the DAG {dag_id!r}.", {"dag_id": dag_id, "n": n})


def _dags(found: AssetInfo, role: str) -> list[str]:
    return sorted({one.dag_id for one in found.references if one.role == role})


def _states(found: AssetInfo, watchers: list[Watching]) -> list[str]:
    own = [watcher for watcher in watchers if (watcher.asset, watcher.uri) == (found.name, found.uri)]
    return [f"{it.watcher}: {it.state}{f' ({it.error})' if it.state == 'failed' else ''}" for it in own]
