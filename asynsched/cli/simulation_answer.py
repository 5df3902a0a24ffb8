"""How a simulation is answered: tables for people, JSON for programs, and files with all of it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from asynsched.cli.rendering import Listing, Output, Record, Row, note, some_of
from asynsched.cli.showing import show
from asynsched.errors import SettingsError
from asynsched.simulation.comparison import Comparison, RunChange, compare
from asynsched.simulation.span import SpanReport
from asynsched.simulation.trace import RunTrace
from asynsched.states import FINISHED_RUN_STATES, DagRunState

RUN_COLUMNS = RunTrace.__struct_fields__


def show_span(span: SpanReport, output: Output) -> None:
    """Show what happened: summaries as tables, or every run and task as JSON."""
    if output is Output.JSON:
        show(Listing(RUN_COLUMNS, [msgspec.structs.asdict(run) for run in span.runs]), output)
        return
    fields = {
        "from": span.start,
        "to": span.end,
        "seed": span.seed,
        "runs": len(span.runs),
        "task_starts": sum(n_starts(run) for run in span.runs),
        "paused_dags": span.paused_dags,
        "dags": dag_rows(span.runs),
        "pools": [_without(use, "steps") for use in span.pools],
        "missed_deadlines": [_without(miss) for miss in span.missed_deadlines],
        "clock_changes": [_without(change) for change in span.clock_changes],
    }
    sections = ("dags", "pools", "missed_deadlines", "clock_changes")
    show(Record(fields, sections=dict.fromkeys(sections, ())), output)


def show_comparison(before: SpanReport, after: SpanReport, output: Output) -> None:
    """Show what a change of the DAG files does."""
    found = compare(before, after)
    if output is Output.JSON:
        show(Record(msgspec.structs.asdict(found)), output)
        return
    fields = {
        "from": before.start,
        "to": before.end,
        "runs": f"{len(before.runs)} -> {len(after.runs)}",
        "task_starts": f"{sum(map(n_starts, before.runs))} -> {sum(map(n_starts, after.runs))}",
        "dags": _dag_changes(before, after, found),
        "tasks_added": [_without(task) for task in found.tasks_added],
        "tasks_removed": [_without(task) for task in found.tasks_removed],
        "deadlines": [
            *({"now": "missed", **_without(miss)} for miss in found.deadlines_missed),
            *({"now": "no longer missed", **_without(miss)} for miss in found.deadlines_saved),
        ],
        "pools": [
            {
                "pool": pool.pool,
                "slots": _change(pool.slots_before, pool.slots_after),
                "peak": _change(pool.peak_before, pool.peak_after),
                "mean": _change(pool.mean_before, pool.mean_after),
                "full": _change(_length(pool.full_seconds_before), _length(pool.full_seconds_after)),
                "longest_wait": _change(
                    _length(pool.longest_wait_seconds_before), _length(pool.longest_wait_seconds_after)
                ),
            }
            for pool in found.pools
        ],
    }
    sections = ("dags", "tasks_added", "tasks_removed", "deadlines", "pools")
    show(Record(fields, sections=dict.fromkeys(sections, ())), output)


def say_what_is_assumed(*spans: SpanReport | None) -> None:
    """Print on standard error what the simulations assumed about which tasks."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for span in spans:
        for assumption in span.assumptions if span is not None else ():
            tasks = found.setdefault((assumption.assumed, assumption.whose), {})
            tasks.update(dict.fromkeys(assumption.tasks))
    for (assumed, whose), tasks in found.items():
        note(f"Assumed: {assumed}, for {_count(len(tasks), 'task')} {whose}: {some_of(list(tasks))}.")


def n_errors(span: SpanReport) -> str:
    """Return how many DAG files, or DAGs of them, are left out, in words; empty for none."""
    n = len(span.problems)
    return f"{_count(n, 'error')} of DAG files" if n else ""


def n_failed_runs(span: SpanReport) -> str:
    """Return how many runs have failed, in words; empty for none."""
    n = sum(run.state == DagRunState.FAILED for run in span.runs)
    return f"{_count(n, 'run')} failed" if n else ""


def _count(n: int, what: str) -> str:
    return f"1 {what}" if n == 1 else f"{n} {what}s"


def write_files(span: SpanReport, changed: SpanReport | None, *, report: Path | None, picture: Path | None) -> None:
    """Write the report and the picture that were asked for; of a comparison, the picture shows what it is after.

    Raises:
        SettingsError: A file cannot be written, or there is no library to draw with.
    """
    if report is not None:
        content: Any = span
        if changed is not None:
            content = {"before": span, "after": changed, "comparison": compare(span, changed)}
        encoded = msgspec.json.format(msgspec.json.encode(content), indent=1)
        _written(report, lambda: report.write_bytes(encoded + b"\n"))
    if picture is not None:
        from asynsched.simulation.picture import draw_span  # a plotting library, only where it is asked for

        _written(picture, lambda: draw_span(changed or span, picture))


def _written(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as exc:
        raise SettingsError(f"{path} cannot be written: {exc.strerror}") from exc


def dag_rows(runs: Iterable[RunTrace]) -> list[Row]:
    """Return one row a DAG: how many of its runs ended how, and how long they took."""
    by_dag: dict[str, list[RunTrace]] = defaultdict(list)
    for run in runs:
        by_dag[run.dag_id].append(run)
    return [_dag_row(dag_id, by_dag[dag_id]) for dag_id in sorted(by_dag)]


def _dag_row(dag_id: str, runs: list[RunTrace]) -> Row:
    lengths = [run.ended_at - run.started_at for run in runs if run.started_at and run.ended_at]
    delays = [run.started_at - run.run_after for run in runs if run.started_at]
    return {
        "dag_id": dag_id,
        "runs": len(runs),
        "success": sum(run.state == DagRunState.SUCCESS for run in runs),
        "failed": sum(run.state == DagRunState.FAILED for run in runs),
        "unfinished": sum(run.state not in FINISHED_RUN_STATES for run in runs),
        "task_starts": sum(map(n_starts, runs)),
        "mean_duration": _length(_mean(lengths)),
        "longest": _length(max(lengths, default=None)),
        "longest_delay": _length(max(delays, default=None)),
    }


def n_starts(run: RunTrace) -> int:
    """Return how many tries of a run's tasks were started."""
    return sum(len(task.tries) for task in run.tasks)


def _dag_changes(before: SpanReport, after: SpanReport, found: Comparison) -> list[Row]:
    """Return one row for each DAG that is not as it was."""
    old = {row["dag_id"]: row for row in dag_rows(before.runs)}
    new = {row["dag_id"]: row for row in dag_rows(after.runs)}
    changed: dict[str, list[RunChange]] = defaultdict(list)
    for change in found.runs_changed:
        changed[change.dag_id].append(change)
    added = Counter(run.dag_id for run in found.runs_added)
    removed = Counter(run.dag_id for run in found.runs_removed)
    rows: list[Row] = []
    for dag_id in sorted({*changed, *added, *removed}):
        was, is_now, moves = old.get(dag_id, {}), new.get(dag_id, {}), changed[dag_id]
        rows.append(
            {
                "dag_id": dag_id,
                "added": added[dag_id],
                "removed": removed[dag_id],
                "later": sum((move.start_later_seconds or 0) > 0 for move in moves),
                "earlier": sum((move.start_later_seconds or 0) < 0 for move in moves),
                "other_state": sum(move.state_before != move.state_after for move in moves),
                "mean_duration": _change(was.get("mean_duration"), is_now.get("mean_duration")),
                "longest": _change(was.get("longest"), is_now.get("longest")),
            }
        )
    return rows


def _change(before: object, after: object) -> str:
    old, new = ("none" if value is None else str(value) for value in (before, after))
    return old if old == new else f"{old} -> {new}"


def _mean(lengths: list[timedelta]) -> timedelta | None:
    return sum(lengths, timedelta()) / len(lengths) if lengths else None


def _length(value: timedelta | float | None) -> str | None:
    """Return a length for people, in whole seconds."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return str(timedelta(seconds=round(seconds)))


def _without(struct: msgspec.Struct, *fields: str) -> Row:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if name not in fields}
