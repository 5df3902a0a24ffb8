"""`asynsched preview`: the changes that a new state of the DAG folder would make before it is live."""

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any

import click
import msgspec

from asynsched.cli.command import Amount, command, fail_if_wanted, fail_on_option
from asynsched.cli.output import FORMS, Output, Record, Row, are, cell, count, note, printable, show, some_of
from asynsched.cli.session import Session
from asynsched.cli.simulate import pools_option

if TYPE_CHECKING:
    from asynsched.queries.preview import NextRuns, Preview, RunVersion
    from asynsched.queries.version_changes import DagChange

HAS_PROBLEMS = 3
"""The exit code where the new state has a problem that --fail-on names; 1 is for a preview that cannot be made."""
LONGEST_SPAN = 24 * 366
"""Hours."""
LONGEST_TEXT = 60_000
"""Characters of Markdown; GitHub refuses a comment of more than 65,536."""
LONGEST_CELL = 300
MOST_ROWS = 50
"""Of a table."""
TITLES = {
    "files_failing": "DAG files that cannot be used",
    "files_mended": "DAG files that fail no longer",
    "dags": "DAGs",
    "tasks": "Tasks",
    "edges": "Edges",
    "fields": "Fields of DAGs",
    "schedules": "Schedules and next runs",
    "active_runs": "Active runs",
    "assets_without_producer": "Assets that nothing updates any more",
    "pools_missing": "Pools that do not exist",
    "load": "Simulated load",
}
PLAIN = {"change", "figure", "is_new", "paused", "then", "line"}
"""Columns with words of asynsched's own."""


@command("preview", forms=(*FORMS, Output.MARKDOWN.value, Output.DOT.value))
@click.argument("where", metavar="DIR|COMMIT")
@click.option(
    "--against", metavar="DIR|COMMIT",
    help="Compare with this folder or commit; by default with the DAGs that the database has.",
)  # fmt: skip
@click.option(
    "--hours", type=Amount(0, LONGEST_SPAN), default=24, show_default=True,
    help="Simulate this span of time from now on; 0 for no simulation.",
)  # fmt: skip
@pools_option
@fail_on_option(
    code=HAS_PROBLEMS,
    default="errors",
    errors="DAG files, or DAGs of them, cannot be used",
    pools="tasks need pools that do not exist",
    assets="assets lose their last producer",
    removed="DAGs are removed",
    failed="more runs of the simulation fail than before",
    deadlines="runs of the simulation miss deadlines that they met before",
)
def preview(
    session: Session,
    output: Output,
    where: str,
    against: str | None,
    hours: float,
    pools: dict[str, int],
    fail_on: frozenset[str],
) -> None:
    """Show what a new state of the DAG folder would do before it is live: a folder, or a commit of its Git repository.

    Shown are files that fail, new versions and why, changed tasks, edges and schedules, active runs that stay on their
    version, assets without a producer, missing pools, and the simulated load. DAG files are parsed as always, in
    confined processes; the home is not changed.
    """
    from asynsched.cli.logging import configure_logging
    from asynsched.previewing.gathering import Wanted, gather_preview

    configure_logging(msgspec.structs.replace(session.settings.log, level="error"))
    place = session.place
    if not session.home.is_dir():
        session.use_passing_home(keep_database=True)
    wanted = Wanted(where, against, timedelta(hours=hours), pools)
    found = gather_preview(session.settings, wanted, place=place, now=session.now())
    _show(found, output)
    fail_if_wanted(fail_on, HAS_PROBLEMS, **problems(found))


def problems(found: "Preview") -> dict[str, str]:
    """Return, for each kind of problem that --fail-on can name, what is wrong in the new state; empty for nothing."""
    load = found.load
    more_fail = load is not None and load.failed_after > load.failed_before
    missed = load.deadlines_missed if load is not None else ()
    return {
        "errors": f"{count(len(found.failing), 'error')} of DAG files" if found.failing else "",
        "pools": f"{count(len(found.missing_pools), 'pool')} missing" if found.missing_pools else "",
        "assets": f"{are(len(found.lost_assets), 'asset')} updated by nothing" if found.lost_assets else "",
        "removed": f"{are(len(found.removed), 'DAG')} removed" if found.removed else "",
        "failed": f"{load.failed_after} simulated runs fail, not {load.failed_before}" if load and more_fail else "",
        "deadlines": f"{count(len(missed), 'deadline')} missed in the simulation" if missed else "",
    }


def _show(found: "Preview", output: Output) -> None:
    if output is Output.JSON:
        show(Record(msgspec.structs.asdict(found)), output)
    elif output is Output.MARKDOWN:
        sys.stdout.write(as_markdown(found, problems(found)))
    elif output is Output.DOT:
        from asynsched.queries.changed_graph import as_dot

        sys.stdout.write("".join(as_dot(each.dag_id, each.graph) for each in found.changed if each.graph is not None))
    else:
        tables = tables_of(found)
        fields: dict[str, Any] = {"before": found.before, "after": found.after, "dags_unchanged": found.n_unchanged}
        show(Record(fields | tables, sections=dict.fromkeys(tables, ())), output)
        if not any(tables.values()):
            note("Nothing changes.")


def tables_of(found: "Preview") -> dict[str, list[Row]]:
    """Return the parts of a preview as rows of short texts, by the part's name."""
    return {
        "files_failing": [
            {
                "file": one.file,
                "line": one.line,
                "message": one.message,
                "is_new": one.is_new,
                "keeps": some_of(one.keeps),
            }
            for one in found.failing
        ],
        "files_mended": [{"file": path} for path in found.mended],
        "dags": [
            *({"dag_id": one.dag_id, "change": "added", "why": one.file} for one in found.added),
            *({"dag_id": one.dag_id, "change": "removed", "why": one.file} for one in found.removed),
            *({"dag_id": one.dag_id, "change": "new version", "why": ", ".join(one.reasons)} for one in found.changed),
        ],
        "tasks": [row for change in found.changed for row in _task_rows(change)],
        "edges": [
            {"dag_id": change.dag_id, "change": edge.change, "edge": f"{edge.source_id} -> {edge.target_id}"}
            for change in found.changed
            if change.graph is not None
            for edge in change.graph.changed_edges
        ],
        "fields": [
            {"dag_id": change.dag_id, "field": one.field, "before": one.before, "after": one.after}
            for change in found.changed
            for one in change.fields
        ],
        "schedules": [
            {
                "dag_id": one.dag_id,
                "paused": one.is_paused,
                "before": next_in_words(one.before),
                "after": next_in_words(one.after),
            }
            for one in found.schedules
        ],
        "active_runs": [
            {"dag_id": run.dag_id, "run_id": run.run_id, "state": run.state, "then": run_in_words(run)}
            for run in found.active_runs
        ],
        "assets_without_producer": [
            {"asset": one.name, "until_now_from": some_of(one.producers), "awaited_by": some_of(one.consumers)}
            for one in found.lost_assets
        ],
        "pools_missing": [{"pool": one.pool, "needed_by": some_of(one.tasks)} for one in found.missing_pools],
        "load": list(_load_rows(found)),
    }


def _task_rows(change: "DagChange") -> Iterator[Row]:
    for name, tasks in (("added", change.tasks_added), ("removed", change.tasks_removed)):
        for task_id in tasks:
            yield {"dag_id": change.dag_id, "task_id": task_id, "change": name, "before": None, "after": None}
    for task in change.tasks_changed:
        for one in task.fields:
            yield {
                "dag_id": change.dag_id,
                "task_id": task.task_id,
                "change": one.field,
                "before": one.before,
                "after": one.after,
            }


def next_in_words(runs: "NextRuns | None") -> str:
    """Return a schedule and its next runs as a text."""
    from asynsched.queries.preview import MOST_DUE

    if runs is None:
        return "no DAG"
    if runs.error:
        return f"{runs.schedule}; {runs.error}"
    if runs.schedule is None:
        return "only on demand"
    parts = [runs.schedule]
    if runs.n_due:
        parts.append(f"{'at least ' if runs.n_due == MOST_DUE else ''}{are(runs.n_due, 'run')} due")
    coming = ", ".join(f"{at:%Y-%m-%d %H:%M}Z" for at in runs.run_after)
    return "; ".join([*parts, *([f"next {coming}"] if coming else [])])


def run_in_words(run: "RunVersion") -> str:
    """Return on which version a run goes on while its DAG changes, as a text."""
    if run.version is not None:
        return f"stays on version {run.version}"
    return "begins with the last version" if run.is_removed else "begins with the new version"


def _load_rows(found: "Preview") -> Iterator[Row]:
    load = found.load
    if load is None:
        return
    hours = (load.end - load.start).total_seconds() / 3600
    yield {"figure": f"runs in {hours:g} h", "before": load.runs_before, "after": load.runs_after}
    yield {"figure": "task starts", "before": load.task_starts_before, "after": load.task_starts_after}
    yield {"figure": "failed runs", "before": load.failed_before, "after": load.failed_after}
    for missed in load.deadlines_missed:
        yield {"figure": f"deadline of {missed}", "before": "met", "after": "missed"}
    for pool in load.pools:
        figures = {
            "most slots taken": (pool.peak_before, pool.peak_after),
            "time without a free slot": (_length(pool.full_seconds_before), _length(pool.full_seconds_after)),
            "longest wait": (_length(pool.longest_wait_seconds_before), _length(pool.longest_wait_seconds_after)),
        }
        for figure, (before, after) in figures.items():
            if before != after:
                yield {"figure": f"{pool.pool}: {figure}", "before": before, "after": after}


def _length(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def as_markdown(found: "Preview", problems: dict[str, str]) -> str:
    """Return a preview as Markdown for a comment on a pull request, without the parts for which it has no room.

    Texts of DAG files stand in code: there they cannot be a link, a mention or a picture.
    """
    fitting: list[str] = []
    n_left_out, room = 0, LONGEST_TEXT
    for part in _parts(found, problems):
        if len(part) < room:
            fitting.append(part)
            room -= len(part) + 1
        else:
            n_left_out += 1
    if n_left_out:
        fitting.append(f"Left out, as this would be too long: {count(n_left_out, 'part')}.\n")
    return "\n".join(fitting)


def _parts(found: "Preview", problems: dict[str, str]) -> Iterator[str]:
    figures = {
        "added": len(found.added),
        "removed": len(found.removed),
        "with a new version": len(found.changed),
        "unchanged": found.n_unchanged,
    }
    numbers = ", ".join(f"{n} {what}" for what, n in figures.items() if n) or "none"
    yield f"## Preview of the DAG folder\n\n{_code(found.before)} → {_code(found.after)}. DAGs: {numbers}.\n"
    if wrong := [f"- ⚠️ {text}\n" for text in problems.values() if text]:
        yield "".join(wrong)
    for name, rows in tables_of(found).items():
        if rows:
            yield f"### {TITLES[name]}\n\n{_table(rows)}"
    for change in found.changed:
        if change.graph is not None:
            from asynsched.queries.changed_graph import as_mermaid

            picture = as_mermaid(change.graph)
            title = f"<code>{escape(change.dag_id)}</code>"
            yield f"<details><summary>{title}</summary>\n\n```mermaid\n{picture}```\n\n</details>\n"


def _table(rows: Sequence[Row]) -> str:
    columns = tuple(rows[0])
    lines = [
        f"| {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(_cell(column, row) for column in columns)} |" for row in rows[:MOST_ROWS]),
    ]
    more = ["", f"And {len(rows) - MOST_ROWS} more."] if len(rows) > MOST_ROWS else []
    return "\n".join([*lines, *more, ""])


def _cell(column: str, row: Row) -> str:
    text = cell(row[column])
    return text if column in PLAIN or not text else _code(text)


def _code(text: str) -> str:
    """Return a text as code, which fits into a table."""
    short = text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
    return f"`{printable(short).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
