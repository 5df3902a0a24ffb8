"""`asynsched simulate`: what a scheduler will do with a folder of DAG files, without waiting for it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from asynsched.cli.causes import only_cause
from asynsched.cli.command import command, told_output
from asynsched.cli.fail_on import fail_if_wanted, fail_on_option
from asynsched.cli.instants import INSTANT_FORMS, read_instant
from asynsched.cli.logging import configure_logging
from asynsched.cli.rendering import Output, note
from asynsched.cli.session import Session
from asynsched.settings import Settings

if TYPE_CHECKING:
    from asynsched.simulation.expectations import Entry, Expectations
    from asynsched.simulation.home_state import HomeState
    from asynsched.simulation.span import Plan, SpanReport

HISTORY = "history"
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


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
    type=click.FloatRange(min=0),
    help="How long each try lasts of which FILE does not say it; by default the median of its task's newest runs in"
    " this home, or a minute.",
)
@click.option(
    "--failure-rate",
    metavar="RATE",
    help=f"Share of the tries that fail, 0 to 1, where FILE does not say it; `{HISTORY}`: as many as in this home. By"
    " default none, except that a task fails which has never succeeded in this home.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed makes other tries fail.")
@click.option(
    "--pool", "pools", metavar="NAME=SLOTS", multiple=True, help="A pool as if it had so many slots; may be repeated."
)
@click.option("--unpause", is_flag=True, help="As if no DAG were paused.")
@click.option(
    "--compare", "other", metavar="DIR", type=FOLDER, help="Show what would be different with the DAG files of DIR."
)
@click.option("--report", metavar="FILE", type=NEW_FILE, help="Write everything to FILE, as one JSON object.")
@click.option("--picture", metavar="FILE", type=NEW_FILE, help="Draw runs and pools to FILE, a .svg or .png.")
@fail_on_option(
    "DAG files, or DAGs of them, are left out", "runs of the span have failed; with --compare, those of its DIR count"
)
@told_output()
def simulate(session: Session, output: str, folder: Path | None, other: Path | None, **options: Any) -> None:
    """Show what a scheduler will do in a span of time: every run and task, the use of pools, changes of the clock.

    The scheduler's own code runs in virtual time, as if all that was due before had been done. Nothing is executed but
    the DAG files, which are parsed as always, and nothing of the home is changed. JSON is the list of the runs with
    their tasks. The same files, options and history give the same answer.
    """
    # What a simulation needs.
    from asynsched.cli.simulation_answer import (
        n_errors,
        n_failed_runs,
        say_what_is_assumed,
        show_comparison,
        show_span,
        write_files,
    )
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
        show_span(span, Output(output))
    else:
        changed = _simulated(msgspec.structs.replace(settings, dags_folder=str(other)), plan)
        show_comparison(span, changed, Output(output))
    say_what_is_assumed(span, changed)
    write_files(span, changed, report=report, picture=picture)
    last = changed or span
    fail_if_wanted(fail_on, n_errors=n_errors(last), n_failed=n_failed_runs(last))


def _plan(
    settings: Settings,
    *,
    start: str,
    end: str,
    durations: Path | None,
    duration: float | None,
    failure_rate: str | None,
    seed: int,
    pools: Sequence[str],
    unpause: bool,
) -> "Plan":
    from asynsched.simulation.expectations import read_entries
    from asynsched.simulation.home_state import read_home_state
    from asynsched.simulation.span import Plan

    zone = settings.default_timezone
    home = read_home_state(settings.database_url)
    plan = Plan(
        start=read_instant(start, zone, "--from"),
        end=read_instant(end, zone, "--to"),
        seed=seed,
        expectations=_expectations(read_entries(durations) if durations else (), duration, failure_rate, home),
        home=home,
        pools=dict(map(_read_pool, pools)),
        unpause=unpause,
    )
    if plan.end <= plan.start:
        raise click.BadParameter("the span must end after its start", param_hint="--to")
    return plan


def _expectations(
    entries: "tuple[Entry, ...]", duration: float | None, failure_rate: str | None, home: "HomeState"
) -> "Expectations":
    from asynsched.simulation.expectations import Expectation, Expectations, Rate, with_certain_failures

    given, history = Expectation(duration=duration), home.history
    if failure_rate is None:
        history = with_certain_failures(history)
    elif failure_rate != HISTORY:
        try:
            rate = msgspec.convert(failure_rate, Rate, strict=False)
        except msgspec.ValidationError as exc:
            message = f"{failure_rate!r} is neither a number from 0 to 1 nor {HISTORY!r}"
            raise click.BadParameter(message, param_hint="--failure-rate") from exc
        given = Expectation(duration=duration, failure_rate=rate)
    return Expectations(entries, given=given, history=history)


def _read_pool(text: str) -> tuple[str, int]:
    name, separator, slots = text.rpartition("=")
    try:
        if separator:
            return name, int(slots)
    except ValueError:
        pass
    raise click.BadParameter(f"{text!r} is no pool: write NAME=SLOTS", param_hint="--pool")


def _simulated(settings: Settings, plan: "Plan") -> "SpanReport":
    """Read a folder and simulate it; say on standard error what is wrong with its files."""
    from asynsched.simulation.expectations import why_unused
    from asynsched.simulation.folder import asker, parse_folder
    from asynsched.simulation.span import simulate_span

    try:
        reports = asyncio.run(parse_folder(settings, plan.start, plan.end))
    except BaseExceptionGroup as group:
        raise only_cause(group) from group
    for report in reports:
        for error in report.errors:
            note(f"Left out: {report.path}: {error.message}")
    names = {f"{parsed.dag.dag_id}.{task.task_id}" for report in reports for parsed in report.dags
             for task in parsed.dag.tasks}  # fmt: skip
    for pattern in plan.expectations.unused(names):
        note(f"Warning: --durations: {why_unused(pattern, names)}")
    return simulate_span(settings, reports, plan, ask=asker(settings))
