"""`asynsched providers …`: Airflow's provider packages, installed without Airflow.

The resolver of pip (or uv) chooses versions that fit one another and the Airflow that asynsched is like. It gets an
empty package in place of Airflow, and of each provider that asynsched does without; these are then not installed.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import click
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from asynsched.airflow import version
from asynsched.airflow.finder import serve_airflow
from asynsched.authoring.providers import PREFIX, installed_providers
from asynsched.cli.command import command, fail
from asynsched.cli.output import Done, Listing, are, as_row, note
from asynsched.cli.session import Session

AIRFLOW = {
    "apache-airflow": version.version, "apache-airflow-core": version.version,
    "apache-airflow-task-sdk": version.sdk_version,
}  # fmt: skip
"""The packages of Airflow itself, and the versions that asynsched is like."""
REFUSED = {
    "standard": "it is a part of asynsched",
    "celery": "it is an executor of Airflow's; for asynsched's own, install asynsched[celery]",
    "edge3": "it is an executor of Airflow's; asynsched has others for tasks on other machines",
    "fab": "it is a part of Airflow's web server",
    "keycloak": "it is a part of Airflow's web server",
}
"""Providers that cannot work without Airflow, and why."""
BROUGHT_BY_AIRFLOW = (
    "asgiref>=2.3", "attrs>=22.1", "deprecated>=1.2.13", "dill>=0.2.2", "lazy-object-proxy>=1.2", "python-slugify>=5",
    "pyyaml>=6", "setproctitle>=1.3.3", "tabulate>=0.9", "tenacity>=8.3", "universal-pathlib>=0.3.8",
)  # fmt: skip
"""Packages that providers import and do not require: Airflow's core requires them."""
_ANY_VERSION = "999"
_CONFLICT_OF_PIP, _CONFLICT_OF_UV = "The conflict is caused by:\n", "No solution found when resolving dependencies"
_DETAILS = ("hooks", "notifiers", "extra_links", "secrets_backends")


@command("list", tables=True)
def providers_list(_session: Session) -> Listing:
    """List the installed providers, and the types of connections that their hooks use.

    `--wide` also shows their hooks, notifiers, extra links and secrets backends.
    """
    serve_airflow("ours")
    from asynsched.queries.plugins import list_providers  # loads anyio

    described = {one.package_name: one for one in list_providers()}
    rows = [
        {
            **as_row(described.get(provider.distribution, {})),
            "provider": provider.distribution.removeprefix(PREFIX),
            "version": provider.version,
            "connection_types": sorted(provider.connection_types),
            "hooks": sorted(provider.connection_types.values()),
            "task_decorators": sorted(provider.task_decorators),
            "notifiers": sorted(provider.info.get("notifications", ())),
            "extra_links": sorted(provider.info.get("extra-links", ())),
            "secrets_backends": sorted(provider.info.get("secrets-backends", ())),
            "error": provider.error,
        }
        for provider in installed_providers()
    ]
    usual = ("provider", "version", "connection_types", "task_decorators", "error")
    nothing = "No provider is installed. `asynsched providers install NAME` installs one."
    return Listing((*usual, *_DETAILS), rows, nothing, usual=usual, spare=("error", "task_decorators"))


@command("install")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def providers_install(_session: Session, names: tuple[str, ...]) -> Done:
    """Install Airflow's providers beside asynsched, with what they need other than Airflow.

    NAME is that of the package without `apache-airflow-providers-`, such as http or cncf-kubernetes. It may have extras
    and a version, as for pip: `amazon[s3fs]`, `http==6.3.0`.
    """
    wanted = [_requirement(name) for name in names]
    installer = _installer()
    note("Choosing versions that fit one another.")
    with tempfile.TemporaryDirectory() as folder:
        chosen = _chosen(wanted, installer, Path(folder))
    providers = [pin for pin in chosen if pin.startswith(PREFIX)]
    others = [pin for pin in chosen if pin not in providers]
    if not chosen:
        return Done("Nothing is missing: the newest versions that fit are installed.", {"providers": []})
    if providers:
        note(f"Installing {', '.join(providers)}, without Airflow.")
    if others:
        note(f"Installing what they need: {', '.join(others)}.")
    _run([*installer.command, "--no-deps", *chosen])
    return Done(f"{are(len(chosen), 'package')} installed.", {"providers": providers})


class _Installer(NamedTuple):
    """The command that installs into this interpreter's environment, and whether it is pip's; otherwise it is uv's."""

    command: list[str]
    is_pip: bool


def _chosen(wanted: Sequence[Requirement], installer: _Installer, folder: Path) -> list[str]:
    """Return the packages to install, as `name==version`: the providers and their requirements that are missing."""
    stand_ins = [str(path) for path in _stand_ins(folder)]
    requirements = [*stand_ins, *map(str, wanted)]
    if installer.is_pip:
        report = folder / "report.json"
        _run([*installer.command, "--upgrade", "--dry-run", "--report", str(report), *requirements], folder)
        found = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
        pins = [f"{canonicalize_name(one['name'])}=={one['version']}" for one in found]
    else:
        newest = [f"--upgrade-package={requirement.name}" for requirement in wanted]
        told = _run([*installer.command, "--dry-run", *newest, *requirements], folder)
        pins = [line.removeprefix(" + ") for line in told.splitlines() if line.startswith(" + ") and "==" in line]
    served = {*AIRFLOW, *(PREFIX + name for name in REFUSED)}
    return sorted(pin for pin in pins if pin.partition("==")[0] not in served)


def _stand_ins(folder: Path) -> Iterator[Path]:
    """Write an empty package for each of those that asynsched takes the place of; core requires what it brings."""
    served = AIRFLOW | {PREFIX + name: _ANY_VERSION for name in REFUSED}
    for name, its_version in served.items():
        stem = f"{name.replace('-', '_')}-{its_version}"
        needs = BROUGHT_BY_AIRFLOW if name == "apache-airflow-core" else ()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {its_version}"]
        texts = {
            "METADATA": "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs), ""]),
            "WHEEL": "Wheel-Version: 1.0\nGenerator: asynsched\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "".join(f"{stem}.dist-info/{file},,\n" for file in ("METADATA", "WHEEL", "RECORD")),
        }
        path = folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in texts.items():
                archive.writestr(f"{stem}.dist-info/{file}", text)
        yield path


def _requirement(name: str) -> Requirement:
    try:
        requirement = Requirement(name.removeprefix(PREFIX))
    except InvalidRequirement:
        fail(f"{name!r} does not name a provider; write for example http, cncf-kubernetes or http==6.3.0.")
    short = canonicalize_name(requirement.name)
    if short in REFUSED:
        fail(f"The provider {short} cannot be installed: {REFUSED[short]}.")
    requirement.name = PREFIX + short
    return requirement


def _installer() -> _Installer:
    if find_spec("pip") is not None:
        return _Installer([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"], True)
    if uv := shutil.which("uv"):
        return _Installer([uv, "pip", "install", "--python", sys.executable], False)
    return fail("Neither pip nor uv is there to install packages with; `python -m ensurepip` installs pip.")


def _run(installing: Sequence[str], stand_ins: Path | None = None) -> str:
    """Run an installer and return its stderr. If it fails, the command ends with the installer's reason."""
    # It must not ask for a password: its question would not be seen.
    done = subprocess.run(  # noqa: S603 - pip, with checked names
        installing, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        if stand_ins is not None and (causes := _causes(done.stdout, done.stderr, stand_ins)):
            fail(f"No versions of these packages fit one another: {causes.removesuffix('.')}.")
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}"
        fail(f"{reason} (`{shlex.join(installing)}`)")
    return done.stderr


def _causes(stdout: str, stderr: str, stand_ins: Path) -> str:
    """Return the requirements that pip or uv names as the causes of a conflict; empty if it is another error."""
    if _CONFLICT_OF_UV in stderr:
        return " ".join(stderr.partition(_CONFLICT_OF_UV)[2].replace("cause:", "").split())
    lines = [line.strip() for line in takewhile(str.strip, stdout.partition(_CONFLICT_OF_PIP)[2].splitlines())]
    causes = [f"asynsched is like Airflow {version.version}" if str(stand_ins) in line else line for line in lines]
    return "; ".join(dict.fromkeys(causes))
