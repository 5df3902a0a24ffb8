"""`asynsched check`, `config show` and `version`: this machine and installation, and whether a scheduler is serving."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from asynsched._version import __version__
from asynsched.bell import PING_SECONDS, ask_health
from asynsched.cli.command import command, fail
from asynsched.cli.output import Done, Listing, Output, note, show
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError
from asynsched.executors.log_archive import archive_of
from asynsched.health import WaitingLogs

OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 35)  # the first that has RETURNING
LOOP_COLUMNS = ("name", "age_seconds", "step_seconds", "waits_for_database", "is_stuck")


class Finding(NamedTuple):
    """One thing that was checked: whether it is good enough for a scheduler, and the result, with advice."""

    what: str
    ok: bool
    detail: str


@command("check")
@click.option("--live", is_flag=True, help="Only check the scheduler of this home.")
def check(session: Session, output: Output, live: bool) -> None:
    """Check whether this machine is fit: confinement, file events, database, versions. Exit code 1 if not.

    With --live, exit code 0 if a scheduler of this home is serving and none of its loops is stuck. It shows the age of
    each loop, and the oldest step that has not ended.
    """
    if live:
        _check_live(session, output)
        return
    findings = list(_findings(session))
    show(Listing(Finding._fields, [finding._asdict() for finding in findings]), output)
    unfit = [finding.what for finding in findings if not finding.ok]
    if unfit:
        fail(f"This machine is not fit: {', '.join(unfit)}.")


def _check_live(session: Session, output: Output) -> None:
    answer = ask_health(session.home)
    health = None if answer is None else msgspec.json.decode(answer)
    is_well = health is not None and health["status"] != "stuck"
    if output is Output.JSON:
        show(Done("", {"home": str(session.home), "live": is_well, "health": health}), Output.JSON)
    elif health is not None:
        show(Done(f"A scheduler is serving the home {session.home}. {_oldest_step(health)}", {}), output)
        show(Listing(LOOP_COLUMNS, health["loops"]), output)
        for parse in health.get("parses", ()):
            note(f"{parse['file']} is being parsed, for {parse['seconds']:.0f} s so far.")
        if sentence := msgspec.convert(health.get("logs", {}), WaitingLogs).sentence:
            note(sentence)
    if health is None:
        fail(
            f"No scheduler is serving the home {session.home}: none answers within {PING_SECONDS:g} s. If it has a"
            " process, that is starting or stopping, or its event loop is blocked: see its log."
        )
    if not is_well:
        stuck = ", ".join(loop["name"] for loop in health["loops"] if loop["is_stuck"])
        fail(f"The scheduler of the home {session.home} is stuck: {stuck}.")


def _oldest_step(health: dict[str, Any]) -> str:
    waits = " It waits for its database." if health["status"] == "waiting" else ""
    step = "none" if health["oldest_step"] is None else f"{health['oldest_step']}, {health['oldest_step_seconds']:g} s"
    return f"Its oldest unfinished step: {step}.{waits}"


def _findings(session: Session) -> Iterator[Finding]:
    yield Finding("python", sys.version_info >= OLDEST_PYTHON, f"{platform.python_version()}; 3.11 or newer is needed")
    yield Finding("platform", sys.platform in {"linux", "darwin"}, f"{platform.system()} {platform.release()}")
    yield from _confinement(session.settings.parse.confinement)
    yield _file_events(session.settings.dags_path, session.settings.watch.mode)
    if session.settings.database_url.startswith("sqlite"):
        import sqlite3

        ok = sqlite3.sqlite_version_info >= OLDEST_SQLITE
        yield Finding("sqlite", ok, f"{sqlite3.sqlite_version}; 3.35 or newer is needed")
    if session.settings.log.store:
        yield _log_store(session)
    found = _database(session.settings.database_url)
    yield found
    if found.ok:
        yield _secrets(session)


def _confinement(wanted: str) -> Iterator[Finding]:
    from sandbox.confine import available

    if wanted == "off":
        yield Finding("confinement", True, "nothing is enforced on parses: the setting parse.confinement is off")
        return
    strength = available()
    yield Finding("confinement", True, strength.lines[0])
    for missing in strength.missing:
        yield Finding("confinement", wanted != "required", f"{missing} (parse.confinement is {wanted})")
    yield from (Finding("confinement", True, stricter) for stricter in strength.stricter)


def _file_events(dags_folder: Path, mode: str) -> Finding:
    from asynsched.parsing.watching.discovery import has_events

    existing = next(folder for folder in (dags_folder, *dags_folder.parents) if folder.is_dir())
    where = str(dags_folder) if existing == dags_folder else f"{dags_folder} does not exist yet; {existing}"
    if has_events(existing):
        return Finding("file events", True, f"{where} is on a file system with events.")
    text = f"{where} is on a file system without events: it is polled (watch.mode)."
    return Finding("file events", mode != "events", text)


def _secrets(session: Session) -> Finding:
    from asynsched.store.engines.opening import schema_state
    from asynsched.store.secrets import check_key

    try:
        is_made = schema_state(session.settings.database_url).current is not None
        key_id = session.read(check_key) if is_made else None
    except AsynschedError as exc:
        return Finding("secrets", False, str(exc))
    if key_id is None:
        return Finding("secrets", True, f"There are none yet; the first is encrypted with {session.keys.source}.")
    return Finding("secrets", True, f"They are encrypted with the key {key_id} of {session.keys.source}.")


def _log_store(session: Session) -> Finding:
    try:
        archive = archive_of(session.settings.log)
        assert archive is not None
        archive.check()
    except AsynschedError as exc:
        return Finding("log store", False, str(exc))
    return Finding("log store", True, f"{archive.url} can be written and read.")


def _database(url: str) -> Finding:
    from asynsched.store.engines.opening import schema_state

    try:
        state = schema_state(url)
    except AsynschedError as exc:
        return Finding("database", False, str(exc))
    if state.current is None:
        return Finding("database", True, "It will be created at the first start.")
    if state.current == state.head:
        return Finding("database", True, f"It can be reached, and has the newest schema, {state.head}.")
    text = f"It has schema {state.current}, that of this asynsched is {state.head}. {state.advice}"
    return Finding("database", False, text)


@command("show", tables=True)
def config_show(session: Session) -> Listing:
    """Show every setting, its value and where it came from. Passwords in URLs are hidden."""
    return Listing(("name", "value", "source"), session.configuration.rows())


@command("version")
def version(_: Session) -> Done:
    """Show the versions of asynsched and of its Python."""
    python = platform.python_version()
    return Done(f"asynsched {__version__}, Python {python}", {"asynsched": __version__, "python": python})
