"""Parses example files as a scheduler does, and runs their DAGs: real processes, none of which is left behind."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.compatibility.outcomes import Run, Tried
from tests.compatibility.packages import HERE, Package
from tests.support.postgres import running_postgres
from tests.support.up import Finished, Site

SECONDS_OF_A_RUN = 300
SECONDS_OF_A_WAIT = 60
SECONDS_OF_A_PARSE = 1500
KEPT = ("PATH", "LANG", "TZ", "SSL_CERT_FILE")
"""The variables that the files get of this terminal's; no credentials of anything are among them."""
AT_ONCE = os.cpu_count() or 1


@dataclass
class ExampleSite(Site):
    """A folder of example files, tried by an interpreter of its own."""

    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=dict)
    postgres: str = ""

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in super().environment.items() if name in KEPT}
        of_site = {name: value for name, value in super().environment.items() if name not in os.environ}
        fixed = {
            "HOME": str(self.root / "user"),
            "ASYNSCHED_DAGS_ARE_PAUSED_AT_CREATION": "true",
            "ASYNSCHED_DAGS_FOLDER": str(self.dags),
            "ASYNSCHED_PARSE__ENVIRONMENT": json.dumps(
                ["AIRFLOW_VAR_*", *(name for name in self.variables if not name.startswith("ASYNSCHED_"))]
            ),
        }
        places = {"{dags}": str(self.dags), "{postgres}": self.postgres}
        given = {name: _filled(value, places) for name, value in self.variables.items()}
        return kept | of_site | fixed | given | {"PATH": f"{Path(self.python).parent}{os.pathsep}{kept['PATH']}"}

    def command(self, *args: str) -> list[str]:
        return [self.python, "-m", "asynsched", *args]

    def call(self, *args: str, seconds: float) -> Finished | None:
        """Run a command to its end; None if it did not end in time, and was killed with all that it had started."""
        process = subprocess.Popen(
            self.command(*args), cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self._kill_group(process)
            return None
        except BaseException:
            self._kill_group(process)
            raise
        return Finished(process.returncode, stdout, stderr)

    def _kill_group(self, process: "subprocess.Popen[str]") -> None:
        os.killpg(process.pid, 9)
        process.communicate()


def try_packages(
    packages: Sequence[Package],
    contents: Mapping[Package, Path],
    root: Path,
    python: str,
    variables: Mapping[str, str],
) -> dict[str, list[Tried]]:
    """Try the example files of packages of one environment; return the outcome of each file, by package.

    Args:
        packages: The packages to try.
        contents: The folders with the contents of these packages, and of those that they need beside them.
        root: An empty folder for the site.
        python: The interpreter of the environment.
        variables: Variables that the files read while they are parsed.
    """
    site = ExampleSite(root, python=python, variables=variables)
    for package, folder in contents.items():
        _place(folder / package.examples, site.dags / package.place, package.left_out)
    if any(package.environment == "providers" for package in packages):
        _place(HERE / "stand_ins", site.dags)
    with ExitStack() as stack:
        stack.callback(site.end_everything)
        if any("{postgres}" in value for value in variables.values()):
            site.postgres = stack.enter_context(shop_database())
        files = {package: example_files(package, site.dags / package.place) for package in packages}
        parsed = _parsed(site)
        return {package.name: _tried(package, files[package], parsed, site) for package in packages}


@contextmanager
def shop_database() -> Iterator[str]:
    """Start a PostgreSQL server with a database and a user `shop`, and return its host."""
    with running_postgres() as server:
        server.execute("CREATE ROLE shop LOGIN SUPERUSER PASSWORD 'shop'", "CREATE DATABASE shop OWNER shop")
        yield parse_qs(urlsplit(server.url("shop")).query)["host"][0]


def _filled(text: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        text = text.replace(place, value)
    return text


def _place(source: Path, target: Path, left_out: Iterable[str] = ()) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", *left_out))


def example_files(package: Package, folder: Path) -> list[str]:
    """Return the paths of the example files in their folder: those that define DAGs."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        # Airflow loads the files of a folder `plugins` as plugins.
        is_helper = file.name == "__init__.py" or file.parent.name == "plugins"
        is_named = any(fnmatchcase(file.name, pattern) for pattern in package.files)
        if is_named and not is_helper and "dag" in text.lower() and "airflow" in text.lower():
            found.append(str(file.relative_to(folder)))
    return found


@dataclass
class _Parsed:
    errors: list[str] = field(default_factory=list)
    dag_ids: list[str] = field(default_factory=list)


def _parsed(site: ExampleSite) -> dict[str, _Parsed]:
    """Parse all files of the site; return the outcome of each, by its path in the DAG folder."""
    done = site.call("up", "--until-idle", "--parse-processes", str(AT_ONCE), seconds=SECONDS_OF_A_PARSE)
    if done is None:
        raise SystemExit(f"not all files were parsed in {SECONDS_OF_A_PARSE} s")
    if done.code:
        raise SystemExit(f"the files could not be parsed: {last_error(done.stderr)}")
    found: dict[str, _Parsed] = {}
    for error in site.json("dags", "errors"):
        if error["kind"] != "doubtful":
            found.setdefault(error["file"], _Parsed()).errors.append(error["message"])
    for dag in site.json("dags", "list"):
        found.setdefault(dag["file"], _Parsed()).dag_ids.append(dag["dag_id"])
    return found


def _tried(package: Package, files: Sequence[str], parsed: Mapping[str, _Parsed], site: ExampleSite) -> list[Tried]:
    results = {}
    for file in files:
        path = f"{package.place}/{file}" if package.place else file
        results[file] = parsed.get(path, _Parsed())
    runnable = {
        dag_id
        for file, result in results.items()
        if any(fnmatchcase(file, pattern) for pattern in package.runs)
        for dag_id in result.dag_ids
    }
    runs = _foreground_runs(site, runnable - {*package.scheduler}, package)
    runs |= _scheduled_runs(site, runnable & {*package.scheduler}, package)
    return [
        Tried(file, tuple(result.errors), {dag_id: runs[dag_id] for dag_id in result.dag_ids if dag_id in runs})
        for file, result in results.items()
    ]


def _foreground_runs(site: ExampleSite, dag_ids: Iterable[str], package: Package) -> dict[str, Run]:
    """Run each DAG once, in the foreground."""
    ids = sorted(dag_ids)
    seconds = [_seconds_of_a_run(package, dag_id) for dag_id in ids]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(ids, pool.map(lambda *of_one: _foreground_run(site, *of_one), ids, seconds), strict=True))


def _seconds_of_a_run(package: Package, dag_id: str) -> float:
    return SECONDS_OF_A_WAIT if dag_id in package.waiting else SECONDS_OF_A_RUN


def _foreground_run(site: ExampleSite, dag_id: str, seconds: float) -> Run:
    done = site.call("dags", "test", dag_id, "--output", "json", seconds=seconds)
    if done is None:
        run = Run("timeout", why=f"not ended after {seconds} s")
    elif done.stdout.lstrip().startswith("{"):
        ended = json.loads(done.stdout)
        run = Run(ended["state"], _states(ended["tasks"]), "" if done.code == 0 else last_error(done.stderr))
    else:
        run = Run("refused", why=last_error(done.stderr))
    print(f"{dag_id}: {run.state} {run.why}", flush=True)
    return run


def _scheduled_runs(site: ExampleSite, dag_ids: Iterable[str], package: Package) -> dict[str, Run]:
    """Trigger each DAG once in a running scheduler."""
    ids = sorted(dag_ids)
    if not ids:
        return {}
    runs = {}
    with site.up():
        for dag_id in (*ids, *package.unpaused):
            site.run("dags", "unpause", dag_id)
        for dag_id in ids:
            done = _triggered(site, dag_id, _seconds_of_a_run(package, dag_id), answered=dag_id in package.answered)
            (run,) = (run for run in site.runs(dag_id) if run["run_id"] == "tried")
            tasks = _states(site.json("tasks", "list", dag_id, "tried"))
            state, why = ("timeout", "") if done is None else (run["state"], last_error(done.stderr))
            runs[dag_id] = Run(state, tasks, why)
            print(f"{dag_id}: {runs[dag_id].state}", flush=True)
    return runs


def _triggered(site: ExampleSite, dag_id: str, seconds: float, *, answered: bool) -> Finished | None:
    """Trigger a DAG and wait for the end of its run, and answer its questions, if told so, with their first options."""
    command = ("dags", "trigger", dag_id, "--run-id", "tried", "--wait")
    with ThreadPoolExecutor(1) as pool:
        triggered = pool.submit(site.call, *command, seconds=seconds)
        while answered and not triggered.done():
            for asked in site.json("tasks", "awaiting", dag_id):
                # A default may have come before the answer, which is then refused.
                task, option = (dag_id, asked["run_id"], asked["task_id"]), asked["options"][0]
                answer = ("tasks", "answer", *task, "--option", option, "--user", "admin")
                site.call(*answer, seconds=SECONDS_OF_A_RUN)
            wait([triggered], timeout=0.5)
        return triggered.result()


def _states(tasks: Iterable[Mapping[str, str]]) -> dict[str, tuple[str | None, ...]]:
    found: dict[str, list[tuple[int, str | None]]] = {}
    for task in tasks:
        found.setdefault(task["task_id"], []).append((int(task["map_index"]), task["state"]))
    return {task_id: tuple(state for _, state in sorted(states)) for task_id, states in found.items()}


def last_error(output: str) -> str:
    """Return the line that says most about a failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Timeout|Exit)\w*: ", line)]
    return (errors or lines or ["failed"])[-1][:200]
