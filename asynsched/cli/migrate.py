"""`asynsched migrate`: checks an Airflow DAG folder, and imports the contents of Airflow's database."""

import asyncio
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
import msgspec

from asynsched.airflow.finder import serve_airflow
from asynsched.authoring.providers import PREFIX, installed_providers
from asynsched.bell import Hint
from asynsched.cli.airflow_cfg import find_cfg
from asynsched.cli.command import command, configure, fail
from asynsched.cli.output import Output, Record, count, note, show
from asynsched.cli.providers import REFUSED
from asynsched.cli.secrets import parts_of, read_object, value_and_description
from asynsched.cli.session import Session
from asynsched.errors import AsynschedError, HomeInUse, SecretsUnreadable, SettingsError, StoreError, ungrouped
from asynsched.fernet_keys import FernetKeys
from asynsched.home import hold_home
from asynsched.migrating.airflow_database import AirflowDag, AirflowMetadata, AirflowPool, Secret, read_metadata
from asynsched.migrating.importing import (
    Decryption,
    Item,
    Plan,
    Verdict,
    carry_out,
    compare,
    connections_plan,
    paused_plan,
    pools_plan,
    runs_plan,
    variables_plan,
)
from asynsched.migrating.verdicts import Finding, Need, is_of_plugin, judge, judge_plugins, provider_of_type
from asynsched.parsing.readable_secrets import ReadableSecrets
from asynsched.queries.context import Act
from asynsched.queries.secrets import checked_connection
from asynsched.serialization.schema import ParseQuestions, ParseReport, definitions
from asynsched.store.dags.parse_results import defined_elsewhere
from asynsched.store.engines.opening import open_direct, open_inline
from asynsched.store.engines.urls import without_secrets
from asynsched.store.schema import VariableRow
from asynsched.store.secrets import ConnectionRow, list_connections, list_variables

URL_VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
KEY_VARIABLE = "AIRFLOW__CORE__FERNET_KEY"
MOST_RUNS = 1_000
_FILE = click.Path(exists=True, dir_okay=False)
_RUNNING = "Airflow has begun it and not ended it: let it end there, and apply again"


class _Given(NamedTuple):
    """The sources of the import, as the options name them."""

    url: str | None
    variables: str | None
    connections: str | None
    pools: str | None
    fernet_key_file: str | None
    runs: int


@command("migrate", tables=True)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--from", "url", metavar="URL",
    help=f"Airflow's metadata database, of Airflow 2.0 to 3: sqlite:///PATH or postgresql://USER@HOST/NAME. By default"
    f" that of {URL_VARIABLE}, or of the airflow.cfg. It is only read.",
)  # fmt: skip
@click.option(
    "--variables", type=_FILE, metavar="FILE", help="What `airflow variables export` has written: JSON, YAML or env."
)
@click.option(
    "--connections", type=_FILE, metavar="FILE",
    help="What `airflow connections export` has written: JSON, YAML or env.",
)  # fmt: skip
@click.option("--pools", type=_FILE, metavar="FILE", help="What `airflow pools export` has written.")
@click.option(
    "--fernet-key-file", type=_FILE, metavar="FILE",
    help=f"Airflow's core.fernet_key, which encrypts its variables and passwords. By default that of"
    f" {KEY_VARIABLE}, or of the airflow.cfg.",
)  # fmt: skip
@click.option(
    "--runs", type=click.IntRange(1, MOST_RUNS), metavar="N",
    help="Also import the newest N runs of each DAG; the schedule goes on after the last one.",
)  # fmt: skip
@click.option("--apply", is_flag=True, help="Import. Without it, nothing is stored.")
@click.option("--replace", is_flag=True, help="Also replace values that exist here and differ.")
def migrate(
    session: Session, output: Output, folder: Path, apply: bool, replace: bool, runs: int | None, **given: Any
) -> None:
    """Check whether an Airflow DAG folder runs here, and import Airflow's variables, connections, pools and runs.

    The files are parsed as `asynsched up` parses them, and nothing of that is stored. Exit code 0 if every file runs as
    it is and nothing is left out of the import; otherwise 1.
    """
    from asynsched.cli.logging import configure_logging

    configure_logging(msgspec.structs.replace(session.settings.log, level="error"))
    sources = _Given(**given, runs=runs or 0)
    airflow = _Airflow.of_folder(session, folder)
    found = _Imports(sources, _metadata(sources, airflow), _airflow_keys(sources, airflow))
    files = _Files(_parsed(session, folder, found.values))
    fields = files.fields(folder)
    left: list[dict[str, Any]] = []
    if found.has_any:
        found.look_into(files)
        items = found.items(session, apply=apply, replace=replace)
        left = [item._asdict() for item in items if item.verdict in (Verdict.DIFFERS, Verdict.LEFT_OUT)]
        fields |= found.fields(items, files) | {"applied": apply, "left": left}
    if output is not Output.JSON:
        fields |= {"warnings": len(files.warnings), "findings": [_for_people(one) for one in files.findings]}
    show(Record(fields, sections={name: () for name, value in fields.items() if _is_table(value)}), output)
    if output is not Output.JSON:
        _tell_next_step(files, found, is_applied=apply)
    _end(files, left, is_applied=apply)


def _for_people(finding: Finding) -> dict[str, Any]:
    """Return a finding without what a person sees already: its message begins with the place, and has the names."""
    because = _without_place(finding.file, finding.line, finding.what)
    return {"file": finding.file, "line": finding.line, "needs": f"a {finding.needs}", "because": because}


def _without_place(file: str, line: int | None, message: str) -> str:
    """Return the message of an error or a warning without the file and the line with which it begins."""
    return message.removeprefix(f"{file}:{line}: ").removeprefix(f"{file}: ")


def _tell_next_step(files: "_Files", found: "_Imports", *, is_applied: bool) -> None:
    if n := len(files.warnings):
        note(f"{count(n, 'warning')}: --output json shows {'it' if n == 1 else 'them'}.")
    if not found.has_any:
        note(
            f"Airflow's own variables, connections, pools and runs were not looked at: --from URL (or {URL_VARIABLE})"
            " names its database."
        )
    elif not is_applied:
        note("Nothing is stored yet: --apply imports, while no scheduler serves.")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _end(files: "_Files", left: Sequence[Mapping[str, Any]], *, is_applied: bool) -> None:
    """End with code 1 if something needs the user."""
    n_out = sum(item["verdict"] == Verdict.LEFT_OUT for item in left)
    n_kept = len(left) - n_out
    if n_kept and is_applied:
        note(f"{count(n_kept, 'value')} of Airflow's differ from what is here, which stays: --replace replaces it.")
    n_files = len({finding.file for finding in files.findings})
    told = [count(n_files, "file") + " cannot run as it is"] if n_files == 1 else []
    told = [f"{n_files} files cannot run as they are"] if n_files > 1 else told
    if n_out:
        told.append(f"{n_out} left out of the import")
    if told:
        fail(f"{', and '.join(told)}.")


def _parsed(session: Session, folder: Path, values: Sequence[Plan]) -> tuple[ParseReport, ...]:
    """Parse the folder as a scheduler will do that has imported these values. A parse has its scratch folder in a home.

    The values are in a database in memory, so nothing is stored.
    """
    from asynsched.simulation.folder import parse_folder

    # The folder's airflow.cfg counts.
    settings = configure(home=str(session.home), database=session.settings.database, dags_folder=str(folder)).settings
    database = open_inline()
    for plan in (*_present(session), *values):
        database.connection.write(carry_out, plan, replace=False)
    with TemporaryDirectory(prefix="asynsched-", ignore_cleanup_errors=True) as passing:
        if not session.home.is_dir():
            settings = msgspec.structs.replace(settings, home=passing)
        secrets = ReadableSecrets(settings.parse, database.read)
        try:
            with ungrouped():
                return asyncio.run(parse_folder(settings, ParseQuestions(now=session.now()), secrets))
        finally:
            database.connection.close()


def _present(session: Session) -> list[Plan]:
    """Return the variables and connections that exist here; none if they cannot be read."""
    with suppress(SecretsUnreadable):
        if session.is_made:
            return [
                variables_plan(session.read(list_variables), {}),
                connections_plan(session.read(list_connections), {}),
            ]
    return []


class _Files:
    """The verdicts on the files of the folder."""

    def __init__(self, reports: Sequence[ParseReport]) -> None:
        serve_airflow("ours")
        self.providers = installed_providers()
        installed = {provider.distribution.removeprefix(PREFIX) for provider in self.providers}
        self.reports = reports
        self.findings = [
            finding for report in reports for finding in judge(report, installed=installed, refused=REFUSED)
        ] + judge_plugins(reports)
        self.warnings = [
            {
                "file": report.path, "line": warning.line,
                "what": _without_place(report.path, warning.line, warning.message),
            }
            for report in reports for warning in report.warnings if not is_of_plugin(warning)
        ]  # fmt: skip
        self.dags: dict[str, str] = {}
        for dag_id, by_path in definitions(sorted(reports, key=lambda report: report.path)).items():
            keeper, *others = by_path
            self.dags[dag_id] = keeper
            for path in others:
                self.findings.append(Finding(path, Need.CHANGE, defined_elsewhere(dag_id, keeper, path)))

    def fields(self, folder: Path) -> dict[str, Any]:
        needs = {need: {one.file for one in self.findings if one.needs is need} for need in Need}
        n_needing = len({report.path for report in self.reports}.intersection(set[str]().union(*needs.values())))
        return {
            "folder": str(folder),
            "files": len(self.reports),
            "dags": len(self.dags),
            "run_as_they_are": len(self.reports) - n_needing,
            **{f"need_a_{need}": len(files) for need, files in needs.items()},
            "warnings": self.warnings,
            "install": list(_commands(self.findings)),
            "findings": [msgspec.to_builtins(finding) for finding in self.findings],
        }

    def file_of(self, dag: AirflowDag) -> str | None:
        """Return the file that has a DAG of Airflow's, or may have it, but cannot be parsed yet; None if none does."""
        if dag.dag_id in self.dags:
            return self.dags[dag.dag_id]
        broken = {finding.file for finding in self.findings}
        return next((file for file in sorted(broken) if f"/{dag.file}".endswith(f"/{file}")), None)


def _commands(findings: Iterable[Finding]) -> Iterable[str]:
    """Yield the commands that install the missing packages."""
    needed = {need: sorted({name for one in findings if one.needs is need for name in one.names}) for need in Need}
    if providers := needed[Need.PROVIDER]:
        yield shlex.join(["asynsched", "providers", "install", *providers])
    if packages := needed[Need.PACKAGE]:
        yield f"pip install PACKAGE… (those that have the modules {', '.join(packages)})"


class _Airflow(NamedTuple):
    """Airflow's database and key, from its variables or else its airflow.cfg. `cfg`: the path of that file, if any."""

    url: str | None
    key: str | None
    cfg: Path | None

    @classmethod
    def of_folder(cls, session: Session, folder: Path) -> "_Airflow":
        """Return the configuration of the Airflow of a DAG folder. Raises SettingsError if its file cannot be read."""
        from configparser import ConfigParser, Error

        cfg = find_cfg(session.settings.airflow_cfg, folder, os.environ)
        parser = ConfigParser(interpolation=None, strict=False)
        try:
            parser.read([] if cfg is None else cfg, encoding="utf-8-sig")
        except (Error, UnicodeDecodeError) as exc:
            # Not the parser's message: it may quote a line with a password.
            raise SettingsError(f"{cfg}: this is not a configuration of Airflow.") from exc
        # Airflow's parser writes a percent sign twice, and replaces the variables of its environment.
        url = os.path.expandvars(parser.get("database", "sql_alchemy_conn", fallback="").replace("%%", "%"))
        key = os.path.expandvars(parser.get("core", "fernet_key", fallback=""))
        if key.startswith("$"):
            key = ""  # of an environment that this command does not have; an import that needs the key says so
        return cls(os.environ.get(URL_VARIABLE) or url or None, os.environ.get(KEY_VARIABLE) or key or None, cfg)


def _metadata(given: _Given, airflow: _Airflow) -> AirflowMetadata | None:
    if given.url is not None and "***" in without_secrets(given.url):
        raise click.UsageError(
            "--from has a password, which everybody can see in the list of processes. Give the URL without it and set"
            f" PGPASSWORD, or set {URL_VARIABLE} instead."
        )
    url = given.url or airflow.url
    if url is None:
        if given.runs:
            raise click.UsageError(f"--runs needs Airflow's database: give --from, or set {URL_VARIABLE}.")
        return None
    try:
        return read_metadata(url, n_runs=given.runs)
    except AsynschedError as exc:
        # The user did not ask for the database of an airflow.cfg.
        if given.url or given.runs or os.environ.get(URL_VARIABLE):
            raise
        note(f"The database of {airflow.cfg} is left out. {exc}")
        return None


class _Imports:
    """The values to import. An export takes the place of that part of the database."""

    def __init__(self, given: _Given, metadata: AirflowMetadata | None, keys: FernetKeys | None) -> None:
        self._given = given
        self._metadata = metadata
        self._decrypted = Decryption(keys)
        self._connections = self._connection_rows()
        self.values = (self._variables_plan(), connections_plan(*self._connections))
        self.has_any = metadata is not None or any((given.variables, given.connections, given.pools))
        self._dags: dict[AirflowDag, str | None] = {}

    def look_into(self, files: _Files) -> None:
        """Find the files of Airflow's DAGs."""
        self._dags = {} if self._metadata is None else {dag: files.file_of(dag) for dag in self._metadata.dags}

    def fields(self, items: Sequence[Item], files: _Files) -> dict[str, Any]:
        numbers = Counter((item.kind, item.verdict) for item in items)
        shown = None
        if self._metadata is not None:
            shown = f"Airflow {self._metadata.generation}, {self._metadata.shown}"
        return {
            "airflow": shown,
            "imports": [
                {"kind": kind} | {str(verdict).replace(" ", "_"): numbers[kind, verdict] for verdict in Verdict}
                for kind in dict.fromkeys(item.kind for item in items)
            ],
            "missing_dags": [{"dag_id": dag.dag_id, "file": dag.file} for dag, file in self._dags.items() if not file],
            "paused_dags": [dag.dag_id for dag, file in self._dags.items() if file and dag.is_paused],
            "connection_types": list(self._missing_types(files)),
        }

    def items(self, session: Session, *, apply: bool, replace: bool) -> list[Item]:
        """Return the verdict on each value; with `apply`, also store the values."""
        plans = self._plans(session)
        if not apply:
            with _reading(session) as read:
                return [item for plan in plans for item in compare(plan, read(plan.read), replace=replace)]
        session.make()
        with ExitStack() as held:
            try:
                held.enter_context(hold_home(session.home))
            except HomeInUse as exc:
                raise AsynschedError(f"Stop the scheduler before the import: {exc}") from exc
            if session.has_scheduler():
                fail("A scheduler is serving the database. Stop it before the import, and start it again afterwards.")
            return [item for plan in plans for item in _carried_out(session, plan, replace=replace)]

    def _plans(self, session: Session) -> list[Plan]:
        """Return the plans. Paused states come last: an unpaused DAG finds its variables, connections and pools."""
        metadata, plans = self._metadata, [*self.values]
        if self._given.pools is not None:
            pools = read_object(self._given.pools, "pools", dict[str, dict[str, Any]])
            plans.append(pools_plan(_exported_pool(name, values) for name, values in sorted(pools.items())))
        elif metadata is not None:
            plans.append(pools_plan(metadata.pools))
        if metadata is not None:
            here = {dag.dag_id: file for dag, file in self._dags.items() if file}
            running = {f"{dag_id} {run_id}": _RUNNING for dag_id, run_id in metadata.running if dag_id in here}
            if self._given.runs:
                plans.append(runs_plan([one for one in metadata.runs if one.run.dag_id in here], running))
            paused = {dag.dag_id: (dag.is_paused, here[dag.dag_id]) for dag in metadata.dags if dag.dag_id in here}
            plans.append(paused_plan(paused, session.now()))
        return plans

    def _variables_plan(self) -> Plan:
        rows, left_out = [], {}
        if self._given.variables is not None:
            content = read_object(self._given.variables, "variables", dict[str, Any])
            rows = [VariableRow(key, *value_and_description(value)) for key, value in sorted(content.items())]
        elif self._metadata is not None:
            for found in self._metadata.variables:
                try:
                    rows.append(VariableRow(found.key, self._decrypted(found.value) or "", found.description))
                except SecretsUnreadable as exc:
                    left_out[found.key] = str(exc)
        return variables_plan(rows, left_out)

    def _connection_rows(self) -> tuple[list[ConnectionRow], dict[str, str]]:
        """Return the connections, and why others are left out."""
        wanted: dict[str, dict[str, Any]] = {}
        if self._given.connections is not None:
            content = read_object(self._given.connections, "connections", dict[str, dict[str, Any] | str])
            wanted = {conn_id: parts_of(value) for conn_id, value in sorted(content.items())}
        elif self._metadata is not None:
            wanted = {one.conn_id: one.parts | {"password": one.password, "extra": one.extra}
                      for one in self._metadata.connections}  # fmt: skip
        rows, left_out = [], {}
        for conn_id, parts in wanted.items():
            try:
                plain = {
                    name: self._decrypted(value) if isinstance(value, Secret) else value
                    for name, value in parts.items()
                }
                rows.append(checked_connection(conn_id, plain))
            except AsynschedError as exc:
                left_out[conn_id] = str(exc)
        return rows, left_out

    def _missing_types(self, files: _Files) -> Iterable[dict[str, Any]]:
        """Yield the types of connections that no installed provider has."""
        known = {conn_type for provider in files.providers for conn_type in provider.connection_types}
        numbers = Counter(row.conn_type for row in self._connections[0])
        for conn_type, number in sorted(numbers.items()):
            provider = provider_of_type(conn_type)
            if conn_type not in known and provider != "":
                install = None if provider is None else shlex.join(["asynsched", "providers", "install", provider])
                yield {"conn_type": conn_type, "connections": number, "install": install}


@contextmanager
def _reading(session: Session) -> Iterator[Callable[..., Any]]:
    """Yield the reading of the database as it is, or as it would be made."""
    if session.is_made:
        yield session.read
        return
    with open_direct("sqlite://", default_pool_slots=session.settings.default_pool_slots) as empty:
        yield empty.read


def _carried_out(session: Session, plan: Plan, *, replace: bool) -> list[Item]:
    """Carry out a plan in a transaction of its own."""
    detail = {"names": len(plan.wanted)}
    hint = Hint("pool") if plan.kind == "pool" else None
    return session.act(lambda conn: Act(carry_out(conn, plan, replace=replace), plan.action, hint, detail=detail))


def _airflow_keys(given: _Given, airflow: _Airflow) -> FernetKeys | None:
    """Return the keys that Airflow encrypts with. Raises SecretsUnreadable if they are no keys."""
    if given.fernet_key_file is not None:
        keys = FernetKeys(None, Path(given.fernet_key_file), may_make=False)
    elif airflow.key is not None:
        named = KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else str(airflow.cfg)
        keys = FernetKeys(airflow.key, Path(), may_make=False, named=named)
    else:
        return None
    if not keys.key_ids:
        raise SecretsUnreadable(f"There is no key in {keys.source}.")
    return keys


def _exported_pool(name: str, values: Mapping[str, Any]) -> AirflowPool:
    """Return a pool of an export, whose slots were text in old versions."""
    fields = {key: values[key] for key in AirflowPool.__struct_fields__ if values.get(key) is not None}
    try:
        return msgspec.convert({**fields, "name": name}, AirflowPool, strict=False)
    except msgspec.ValidationError as exc:
        raise StoreError(f"The pool {name!r} of the export cannot be read: {exc}") from exc
