"""Which packages are tried, and how their example files get onto this machine: nothing is kept in the project.

`packages.toml` lists packages and environments. Everything is put into a cache folder, and taken from there when it is
there already.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.request import urlopen

from asynsched.cli.providers import PREFIX

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REPOSITORIES = "https://codeload.github.com"


@dataclass(frozen=True)
class Package:
    """One package with example files.

    Attributes:
        name: How the report calls it.
        environment: The environment that its files are tried in.
        requirement: Its name and version on the package index; of a `repository`, its name and the tag of the version.
        form: `wheel` or `sdist` of the index; or `repository`, if these have no examples: GitHub's archive of it.
        examples: The folder of the example files in it.
        place: Where that folder is put in the DAG folder, for the imports of the files among themselves.
        runs: Patterns of the files whose DAGs are run; the others need a service.
        scheduler: DAGs whose tasks ask a scheduler, and which therefore run in one.
        unpaused: DAGs that the others trigger.
        answered: DAGs among `scheduler` whose questions to people are answered, each with its first option.
        waiting: DAGs that wait for something that does not come while they are tried: their runs get less time.
        files: Patterns of the example files.
        left_out: Patterns of files that are not tried, and not in the DAG folder.
        beside: Packages whose example files are put into the DAG folder as well, for DAGs that trigger theirs, or files
            that import them.
    """

    name: str
    environment: str
    requirement: str
    form: str = "sdist"
    examples: str = ""
    place: str = ""
    runs: tuple[str, ...] = ()
    scheduler: tuple[str, ...] = ()
    unpaused: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    files: tuple[str, ...] = ("*.py",)
    left_out: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    """What is installed beside asynsched: providers (by its own command), packages, and packages alone.

    `variables` are those that files read while they are parsed. `{dags}` in one stands for the DAG folder, `{postgres}`
    for the host of a PostgreSQL server, on which the user `shop` may do all.
    """

    name: str
    providers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def listed() -> tuple[dict[str, Package], dict[str, Environment]]:
    """Return the packages and environments of `packages.toml`, by name."""
    known = tomllib.loads((HERE / "packages.toml").read_text(encoding="utf-8"))
    environments = {name: Environment(name, **_frozen(fields)) for name, fields in known["environments"].items()}
    packages = {}
    for name, fields in known["packages"].items():
        packages[name] = Package(name, **_frozen(fields))
    for provider in known["providers"]["tried"]:
        short = provider.partition("==")[0]
        path = f"tests/system/{short.replace('-', '/')}"
        packages[short] = Package(
            short, "providers", PREFIX + provider, examples=path, place=path.removeprefix("tests/"),
            runs=tuple(known["providers"]["runs"].get(short, ())), files=("example_*.py",),
            beside=tuple(known["providers"]["beside"].get(short, ())),
        )  # fmt: skip
    return packages, environments


def unpacked(package: Package, cache: Path, checkouts: Mapping[str, Path]) -> Path:
    """Return the folder of a package's contents; get it from where it is published if it is not in the cache.

    Raises:
        SystemExit: It cannot be got; the message says why.
    """
    if package.name in checkouts:
        return checkouts[package.name]
    folder = cache / "packages" / f"{package.requirement.replace('/', '+')}-{package.form}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            if package.form == "repository":
                _get_archive(package.requirement, Path(fresh, "archive.tar.gz"))
            else:
                form = "--no-binary" if package.form == "sdist" else "--only-binary"
                name = package.requirement.partition("==")[0]
                _get([*_pip(cache), "download", "--no-deps", form, name, "--dest", fresh, package.requirement])
            (archive,) = (path for path in Path(fresh).iterdir() if path.is_file())
            contents = Path(fresh, "contents")
            _unpack(archive, contents)
            contents.rename(folder)
    # An sdist and the archive of a repository have one folder, of a name and version.
    return folder if package.form == "wheel" else next(folder.iterdir())


def _get_archive(requirement: str, target: Path) -> None:
    repository, _, tag = requirement.partition("==")
    address = f"{REPOSITORIES}/{repository}/tar.gz/refs/tags/{tag}"
    try:
        with urlopen(address, timeout=60) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    except OSError as exc:
        raise SystemExit(f"{address} cannot be reached ({exc}), and the repository is not in the cache") from exc


def prepared(environment: Environment, cache: Path) -> str:
    """Return the interpreter of an environment with asynsched and the packages; make it if it is not in the cache.

    Raises:
        SystemExit: It cannot be made; the message says why.
    """
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    contents = repr((replace(environment, variables={}), str(ROOT), sys.version, needed))
    folder = cache / "environments" / f"{environment.name}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"
    python, complete = str(folder / "bin" / "python"), folder / "complete"
    if not complete.exists():
        print(f"making the environment {environment.name}: {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        uv = _uv()
        _get([uv, "venv", "--python", sys.executable, str(folder)])
        install = [uv, "pip", "install", "--python", python]
        _get([*install, "--editable", f"{ROOT}[storage]", *environment.packages])
        if environment.providers:
            _get([python, "-m", "asynsched", "providers", "install", *environment.providers])
        if environment.alone:
            _get([*install, "--no-deps", *environment.alone])
        complete.touch()
    return python


def _pip(cache: Path) -> list[str]:
    """Return the command of a pip: uv does not download, and an environment that it has made has no pip."""
    folder = cache / "environments" / "pip"
    if not (folder / "bin" / "pip").exists():
        _get([sys.executable, "-m", "venv", str(folder)])
    return [str(folder / "bin" / "pip"), "--disable-pip-version-check", "--no-input"]


def _uv() -> str:
    # Its resolver takes a minute for all the providers, that of pip more than ten.
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("uv is needed to install the packages: python -m pip install uv")
    return found


def _get(command: Sequence[str]) -> None:
    # A parse cannot write bytecode: without it, each would compile all that it imports.
    path = f"{Path(_uv()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "UV_COMPILE_BYTECODE": "1", "PATH": path}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:300]}: {reason(done.stderr)}")


def reason(stderr: str) -> str:
    """Return why pip could not get a package, in one line."""
    if re.search(r"NewConnectionError|NameResolutionError|ConnectionError|dns error|error sending request", stderr):
        return "the package index cannot be reached, and the package is not in the cache"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match("(?i)error", line)]
    return (errors or lines or ["failed"])[-1]


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as contents:
            contents.extractall(folder)
    else:
        with tarfile.open(archive) as contents:
            contents.extractall(folder, filter="data")


def _frozen(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
