"""`asynsched simulate`: predicts a scheduler's work on a folder of DAG files, without waiting for it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from asynsched.cli.command import (
    INSTANT_FORMS,
    LONGEST_SECONDS,
    Amount,
    command,
    fail_if_wanted,
    fail_on_option,
    read_instant,
)
from asynsched.cli.output import Listing, Output, Record, Row, count, note, show, some_of
from asynsched.cli.session import Session
from asynsched.errors import SettingsError, ungrouped
from asynsched.settings import Settings
from asynsched.states import DagRunState

if TYPE_CHECKING:
    from asynsched.simulation.folder import HomeState
    from asynsched.simulation.script import Expectations
    from asynsched.simulation.span import Comparison, Plan, RunChange, RunTrace, SpanReport

HISTORY = "history"
FIRST_YEAR, LAST_YEAR = 1900, 2999
SECONDS = "_seconds"
"""The end of a name whose value is shown as a length of time, without it."""
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def _read_pools(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, int]:
    return dict(map(_read_pool, texts))


def _read_pool(text: str) -> tuple[str, int]:
    name, separator, slots = text.rpartition("=")
    try:
        if separator:
            return name, int(slots)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is not a pool: write NAME=SLOTS", param_hint="--pool")


pools_option = click.option(
    "--pool", "pools", metavar="NAME=SLOTS", multiple=True, callback=_read_pools,
    help="Simulate a pool with SLOTS slots; may be repeated.",
)  # fmt: skip


@command("simulate")
@click.argument("folder", metavar="[DIR]", required=False, type=FOLDER)
@click.option("--from", "start", metavar="T", required=True, help=f"Start of the span. {INSTANT_FORMS}")
@click.option("--to", "end", metavar="T", required=True, help="End of the span, which is no longer part of it.")
@click.option(
    "--durations",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML or JSON: DAG.TASK, also with wildcards, to seconds, or to a table (duration, failure_rate, follow, …).",
)
@click.option(
    "--duration",
    metavar="SECONDS",
    type=Amount(0, LONGEST_SECONDS),
    help="The duration of each try that FILE does not mention; by default the median of its task's newest runs in"
    " this home, or a minute.",
)
@click.option(
    "--failure-rate",
    metavar="RATE",
    help=f"Share of the tries that fail, 0 to 1, where FILE does not say it; `{HISTORY}`: as many as in this home. By"
    " default none, except that a task fails which has never succeeded in this home.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="A different seed makes different tries fail.")
@pools_option
@click.option("--unpause", is_flag=True, help="Simulate as if no DAG were paused.")
@click.option(
    "--compare", "other", metavar="DIR", type=FOLDER, help="Show the differences that the DAG files of DIR would make."
)
@click.option("--report", metavar="FILE", type=NEW_FILE, help="Write everything to FILE, as one JSON object.")
@click.option("--picture", metavar="FILE", type=NEW_FILE, help="Draw runs and pools to FILE, a .svg or .png.")
@fail_on_option(
    errors="DAG files, or DAGs of them, are left out",
    failed="runs of the span have failed; with --compare, those of its DIR count",
)
def simulate(session: Session, output: Output, folder: Path | None, other: Path | None, **options: Any) -> None:
    """Show what a scheduler will do in a span of time: every run and task, the use of pools, changes of the clock.

    The scheduler's own code runs in virtual time, as if everything due before had been done. No task is executed: DAG
    files are parsed as always, and the home is not changed. JSON is the list of the runs with their tasks. The same
    files, options and history give the same answer.
    """
    from asynsched.cli.logging import configure_logging
    from asynsched.simulation.picture import check_picture

    report, picture, fail_on = options.pop("report"), options.pop("picture"), options.pop("fail_on")
    if picture is not None:
        check_picture(picture)
    configure_logging(msgspec.structs.replace(session.settings.log, level="error"))
    if not session.home.is_dir():
        session.use_passing_home(keep_database=True)
    settings = session.settings
    if folder is not None:
        settings = msgspec.structs.replace(settings, dags_folder=str(folder))
    plan = _plan(settings, **options)
    span = _simulated(settings, plan)
    changed = None
    if other is None:
        show_span(span, output)
    else:
        changed = _simulated(msgspec.structs.replace(settings, dags_folder=str(other)), plan)
        show_comparison(span, changed, output)
    say_what_is_assumed(span, changed)
    write_files(span, changed, report=report, picture=picture)
    last = changed or span
    n_failed = sum(run.state == DagRunState.FAILED for run in last.runs)
    errors = f"{count(len(last.problems), 'error')} of DAG files" if last.problems else ""
    fail_if_wanted(fail_on, errors=errors, failed=f"{count(n_failed, 'run')} failed" if n_failed else "")


def _plan(
    settings: Settings, *, start: str, end: str, pools: dict[str, int], seed: int, unpause: bool, **given: Any
) -> "Plan":
    from asynsched.simulation.folder import read_home_state
    from asynsched.simulation.span import Plan

    zone, home = settings.default_timezone, read_home_state(settings.database_url)
    plan = Plan(
        start=read_instant(start, zone, "--from"),
        end=read_instant(end, zone, "--to"),
        seed=seed,
        expectations=_expectations(home, **given),
        home=home,
        pools=pools,
        unpause=unpause,
    )
    if not FIRST_YEAR <= plan.start.year <= plan.end.year <= LAST_YEAR:
        raise click.BadParameter(f"the span must be in the years {FIRST_YEAR} to {LAST_YEAR}", param_hint="--from")
    if plan.end <= plan.start:
        raise click.BadParameter("the span must end after its start", param_hint="--to")
    return plan


def _expectations(
    home: "HomeState", durations: Path | None, duration: float | None, failure_rate: str | None
) -> "Expectations":
    from asynsched.simulation.script import Expectation, Expectations, Rate, read_entries, with_certain_failures

    entries = read_entries(durations) if durations else ()
    rate, history = None, home.history
    if failure_rate is None:
        history = with_certain_failures(history)
    elif failure_rate != HISTORY:
        try:
            rate = msgspec.convert(failure_rate, Rate, strict=False)
        except msgspec.ValidationError as exc:
            message = f"{failure_rate!r} is neither a number from 0 to 1 nor {HISTORY!r}"
            raise click.BadParameter(message, param_hint="--failure-rate") from exc
    return Expectations(entries, given=Expectation(duration=duration, failure_rate=rate), history=history)


def _simulated(settings: Settings, plan: "Plan") -> "SpanReport":
    """Read a folder and simulate it; report errors in its files on standard error."""
    from asynsched.simulation.folder import asker, parse_folder, questions_of_span
    from asynsched.simulation.script import why_unused
    from asynsched.simulation.span import simulate_span

    with ungrouped():
        reports = asyncio.run(parse_folder(settings, questions_of_span(plan.start, plan.end)))
    for report in reports:
        for error in report.errors:
            note(f"Left out: {report.path}: {error.message}")
    names = {f"{parsed.dag.dag_id}.{task.task_id}" for report in reports for parsed in report.dags
             for task in parsed.dag.tasks}  # fmt: skip
    for pattern in plan.expectations.unused(names):
        note(f"Warning: --durations: {why_unused(pattern, names)}")
    return simulate_span(settings, reports, plan, ask=asker(settings))


def show_span(span: "SpanReport", output: Output) -> None:
    """Show the simulation: summaries as tables, or every run and task as JSON."""
    if output is Output.JSON:
        from asynsched.simulation.span import RunTrace

        show(Listing(RunTrace.__struct_fields__, [msgspec.structs.asdict(run) for run in span.runs]), output)
        return
    from asynsched.simulation.summary import n_task_starts

    fields = {
        "from": span.start,
        "to": span.end,
        "seed": span.seed,
        "runs": len(span.runs),
        "task_starts": n_task_starts(span.runs),
        "paused_dags": span.paused_dags,
        "dags": dag_rows(span.runs),
        "pools": [_without(use, "steps") for use in span.pools],
        "missed_deadlines": [_without(miss) for miss in span.missed_deadlines],
        "clock_changes": [_without(change) for change in span.clock_changes],
    }
    show(_as_record(fields), output)


def _as_record(fields: Row) -> Record:
    """Return a record in which every list is a table."""
    return Record(fields, sections={name: () for name, value in fields.items() if isinstance(value, list)})


def show_comparison(before: "SpanReport", after: "SpanReport", output: Output) -> None:
    """Show the effect of a change of the DAG files."""
    from asynsched.simulation.span import compare

    found = compare(before, after)
    if output is Output.JSON:
        show(Record(msgspec.structs.asdict(found)), output)
        return
    from asynsched.simulation.summary import n_task_starts

    fields = {
        "from": before.start,
        "to": before.end,
        "runs": f"{len(before.runs)} -> {len(after.runs)}",
        "task_starts": f"{n_task_starts(before.runs)} -> {n_task_starts(after.runs)}",
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
                "full": _change(*map(_length, (pool.full_seconds_before, pool.full_seconds_after))),
                "longest_wait": _change(
                    *map(_length, (pool.longest_wait_seconds_before, pool.longest_wait_seconds_after))
                ),
            }
            for pool in found.pools
        ],
    }
    show(_as_record(fields), output)


def say_what_is_assumed(*spans: "SpanReport | None") -> None:
    """Print the simulations' assumptions about tasks on standard error."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for span in spans:
        for assumption in span.assumptions if span is not None else ():
            tasks = found.setdefault((assumption.assumed, assumption.whose), {})
            tasks.update(dict.fromkeys(assumption.tasks))
    for (assumed, whose), tasks in found.items():
        note(f"Assumed: {assumed}, for {count(len(tasks), 'task')} {whose}: {some_of(list(tasks))}.")


def write_files(span: "SpanReport", changed: "SpanReport | None", *, report: Path | None, picture: Path | None) -> None:
    """Write the report and the picture that were asked for; of a comparison, the picture shows the changed DAG files.

    Raises:
        SettingsError: A file cannot be written, or there is no library to draw with.
    """
    if report is not None:
        from asynsched.simulation.span import compare

        content: Any = span
        if changed is not None:
            content = {"before": span, "after": changed, "comparison": compare(span, changed)}
        encoded = msgspec.json.format(msgspec.json.encode(content), indent=1)
        with _writing(report):
            report.write_bytes(encoded + b"\n")
    if picture is not None:
        from asynsched.simulation.picture import draw_span  # a plotting library, only where it is asked for

        with _writing(picture):
            draw_span(changed or span, picture)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise SettingsError(f"{path} cannot be written: {exc.strerror}") from exc


def dag_rows(runs: "Iterable[RunTrace]") -> list[Row]:
    """Return one row a DAG: how many of its runs ended how, and how long they took."""
    from asynsched.simulation.summary import dags_in_numbers

    rows = map(msgspec.structs.asdict, dags_in_numbers(runs))
    return [
        {name.removesuffix(SECONDS): _length(value) if name.endswith(SECONDS) else value for name, value in row.items()}
        for row in rows
    ]


def _dag_changes(before: "SpanReport", after: "SpanReport", found: "Comparison") -> list[Row]:
    """Return one row for each DAG that has changed."""
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


def _length(value: timedelta | float | None) -> str | None:
    """Return a length of time as text, in whole seconds."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return str(timedelta(seconds=round(seconds)))


def _without(struct: msgspec.Struct, *fields: str) -> Row:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if name not in fields}
