"""`asynsched assets …`: assets, their events, and reports that an asset was updated."""

from typing import Any

import click

from asynsched.bell import Hint
from asynsched.cli.command import command
from asynsched.cli.dags import conf_option, queue_run, read_conf
from asynsched.cli.lookup import asset_of
from asynsched.cli.output import Done, Listing, Record, fields_of
from asynsched.cli.runs import run_fields
from asynsched.cli.session import Session
from asynsched.errors import DagError
from asynsched.scheduling.creation.triggering import update_asset
from asynsched.store import assets as store
from asynsched.store.runs.dag_runs import get_run
from asynsched.store.schema import AssetReference, AssetRow

asset_argument = click.argument("asset", metavar="NAME|URI")
COLUMNS = ("name", "uri", "group", "last_event_at", "updated_by", "awaited_by")
ALIAS_COLUMNS = ("name", "group", "assets")
EVENT_COLUMNS = (
    "id", "name", "created_at", "extra", "source_dag_id", "source_run_id", "source_task_id", "source_map_index",
    "aliases",
)  # fmt: skip
USUAL_EVENT_COLUMNS = ("id", "name", "created_at", "extra", "source_dag_id", "source_run_id", "source_task_id")
SPARE_EVENT_COLUMNS = ("source_map_index", "aliases", "id", "source_run_id")
REFERENCE_COLUMNS = ("role", "dag_id", "task_id", "kind")
SHOWN_EVENTS = 10
"""Events that `show` lists."""


@command("list", tables=True)
@click.option("--alias", is_flag=True, help="List aliases instead, with the assets that each one has stood for.")
def assets_list(session: Session, alias: bool) -> Listing:
    """List the assets that DAGs or events name."""
    if alias:
        rows = [dict(zip(ALIAS_COLUMNS, found, strict=True)) for found in session.read(store.list_aliases)]
        return Listing(ALIAS_COLUMNS, rows, "There are no asset aliases.")
    times = session.read(store.last_event_times)
    references = session.read(store.list_references)
    found = session.read(store.list_assets)
    rows = [_fields(asset, references) | {"last_event_at": times.get(asset.id)} for asset in found]
    return Listing(COLUMNS, rows, "There are no assets.", spare=("group", "uri", "last_event_at"))


@command("show", tables=True)
@asset_argument
def assets_show(session: Session, asset: str) -> Record:
    """Show an asset: the DAGs and tasks that name it, its last events, and the DAGs for which events wait."""
    found = asset_of(session, asset)
    aliases = session.read(store.aliases_of, [found.id])[found.id]
    references = session.read(store.references_to, store.waiting_digests(found.name, found.uri, aliases))
    wanted = store.EventFilter(found.name, found.uri)
    events = session.read(store.list_events, wanted, ascending=False, limit=SHOWN_EVENTS)
    fields = {
        "name": found.name, "uri": found.uri, "group": found.group_name, "extra": found.extra, "aliases": aliases,
        "created_at": found.created_at, "waiting_dags": session.read(store.waiting_dag_ids, found.id),
        "references": [fields_of(reference, REFERENCE_COLUMNS) for reference in references],
        "events": [fields_of(event, EVENT_COLUMNS) for event in events],
    }  # fmt: skip
    return Record(fields, sections={"references": (), "events": SPARE_EVENT_COLUMNS})


@command("events", tables=True)
@click.argument("asset", metavar="[ASSET]", required=False)
@click.option("--alias", metavar="NAME", default="", help="Only events that came through this alias.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="List at most this many.")
def assets_events(session: Session, asset: str | None, alias: str, limit: int) -> Listing:
    """List events, of one asset (its name or URI) or of all, newest first."""
    found = None if asset is None else asset_of(session, asset)
    name, uri = ("", "") if found is None else (found.name, found.uri)
    events = session.read(store.list_events, store.EventFilter(name, uri, alias), ascending=False, limit=limit)
    rows = [fields_of(event, EVENT_COLUMNS) for event in events]
    return Listing(EVENT_COLUMNS, rows, "There are no events.", usual=USUAL_EVENT_COLUMNS, spare=SPARE_EVENT_COLUMNS)


@command("event")
@asset_argument
@click.option("--extra", metavar="JSON", help="An object that describes the update; tasks find it in the event.")
def assets_event(session: Session, asset: str, extra: str | None) -> Done:
    """Report an update of an asset, for which DAGs may be waiting."""
    told = read_conf(extra, "--extra")
    found = asset_of(session, asset, make=True)
    now = session.now()
    name, dag_ids = session.change(
        "asset.event",
        lambda conn: update_asset(conn, asset, told, now=now),
        hint=Hint("asset"),
        detail={"asset": found.name},
    )
    waiting = f"It waits for {', '.join(dag_ids)}." if dag_ids else "No DAG waits for it."
    return Done(f"Asset {name!r} was updated. {waiting}", {"name": name, "uri": found.uri, "dags": dag_ids})


@command("materialize")
@asset_argument
@conf_option
def assets_materialize(session: Session, asset: str, conf: str | None) -> Done:
    """Trigger the only DAG with a task that updates an asset."""
    found = asset_of(session, asset, make=True)
    content = read_conf(conf)
    dag_id = _only_producer(session, found)
    key = queue_run(session, dag_id, conf=content)
    run = session.read(get_run, *key)
    sentence = f"Run {key.run_id!r} of the DAG {dag_id!r} is queued; it updates {found.name!r}."
    return Done(sentence, {} if run is None else run_fields(run))


def _only_producer(session: Session, found: AssetRow) -> str:
    references = session.read(store.references_to, store.waiting_digests(found.name, found.uri, ()))
    dag_ids = sorted({reference.dag_id for reference in references if reference.role == store.OUTLET})
    if len(dag_ids) != 1:
        listed = f"several DAGs do: {', '.join(dag_ids)}; trigger one of them by name" if dag_ids else "no DAG does"
        raise DagError(f"One DAG must have a task that updates the asset {found.name!r}, but {listed}.")
    return dag_ids[0]


def _fields(found: AssetRow, references: list[AssetReference]) -> dict[str, Any]:
    digests = store.waiting_digests(found.name, found.uri, ())
    own = [reference for reference in references if reference.digest in digests]
    return {
        "name": found.name,
        "uri": found.uri,
        "group": found.group_name,
        "updated_by": sorted({reference.dag_id for reference in own if reference.role == store.OUTLET}),
        "awaited_by": sorted({reference.dag_id for reference in own if reference.role == "schedule"}),
    }
