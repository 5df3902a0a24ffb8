"""`asynsched providers …`: Airflow's provider packages, installed without Airflow."""

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from asynsched.airflow import version
from asynsched.airflow.finder import serve_airflow
from asynsched.authoring.providers import PREFIX, installed_providers
from asynsched.cli.command import command, fail
from asynsched.cli.output import Done, Listing, are, as_row, note
from asynsched.cli.session import Session

AIRFLOW = frozenset({"apache-airflow", "apache-airflow-core", "apache-airflow-task-sdk"})
REFUSED = {
    "standard": "it is a part of asynsched",
    "celery": "it is an executor of Airflow's; asynsched runs tasks itself",
    "edge3": "it is an executor of Airflow's; asynsched runs tasks itself",
    "fab": "it is a part of Airflow's web server",
    "keycloak": "it is a part of Airflow's web server",
}
"""Providers that cannot work without Airflow, and why."""
BROUGHT_BY_AIRFLOW = (
    "asgiref>=2.3", "attrs>=22.1", "deprecated>=1.2.13", "dill>=0.2.2", "lazy-object-proxy>=1.2", "python-slugify>=5",
    "pyyaml>=6", "tabulate>=0.9", "tenacity>=8.3", "universal-pathlib>=0.3.8",
)  # fmt: skip
"""Packages that providers import and do not require: Airflow's core requires them."""


@command("list", tables=True)
def providers_list(_session: Session) -> Listing:
    """List the installed providers, and the types of connections that their hooks use.

    `--output json` also has their hooks, notifiers, extra links and secrets backends.
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
    columns = ("provider", "version", "connection_types", "task_decorators", "error")
    nothing = "No provider is installed. `asynsched providers install NAME` installs one."
    return Listing(columns, rows, nothing, spare=("error", "task_decorators"))


@command("install")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def providers_install(_session: Session, names: tuple[str, ...]) -> Done:
    """Install Airflow's providers beside asynsched, with what they need other than Airflow.

    NAME is that of the package without `apache-airflow-providers-`, such as http or cncf-kubernetes. It may have extras
    and a version, as for pip: `amazon[s3fs]`, `http==6.3.0`.
    """
    wanted = [_requirement(name) for name in names]
    installer = _installer()
    with tempfile.TemporaryDirectory() as folder:
        plan = _plan(wanted, installer, Path(folder))
    providers = plan.providers
    note(f"Installing {', '.join(providers)}, without Airflow.")
    _run([*installer, "--no-deps", *providers])
    note(f"Installing what they need: {', '.join(plan.others)}.")
    _run([*installer, *plan.others])
    return Done(f"{are(len(providers), 'provider')} installed.", {"providers": providers})


class _Plan(NamedTuple):
    """Requirements to install: providers of fixed versions, and everything else that these need."""

    providers: list[str]
    others: list[str]


def _plan(wanted: Sequence[Requirement], installer: Sequence[str], folder: Path) -> _Plan:
    plan, todo, seen = _Plan([], list(BROUGHT_BY_AIRFLOW)), list(wanted), set[str]()
    while todo:
        requirement = todo.pop(0)
        name = canonicalize_name(requirement.name)
        found = _fetched(requirement, installer, Path(tempfile.mkdtemp(dir=folder)))
        is_new = name not in seen
        seen.add(name)
        if is_new:
            plan.providers.append(f"{found.name}=={found.version}")
        for needed, is_of_extra in _needs(found, requirement.extras):
            other = canonicalize_name(needed.name)
            if other in AIRFLOW:
                if not needed.specifier.contains(Version(version.version), prereleases=True):
                    fail(
                        f"{found.name} {found.version} needs Airflow {needed.specifier}, and asynsched is like Airflow"
                        f" {version.version}: name an older version, such as '{requirement.name}<{found.version}'."
                    )
            elif other.startswith(PREFIX):
                if other.removeprefix(PREFIX) not in REFUSED and other not in seen:
                    todo.append(needed)
            elif str(needed) not in plan.others:
                # pip settles those in front first. What an extra needs may allow few versions of what all need: it
                # would try one after the other of thousands (aiobotocore after botocore).
                plan.others.insert(0 if is_of_extra else len(plan.others), str(needed))
    return plan


def _needs(found: Distribution, extras: Iterable[str]) -> Iterator[tuple[Requirement, bool]]:
    """Yield the requirements of a package on this machine, and whether only one of the extras has them."""
    for text in found.requires or ():
        requirement = Requirement(text)
        marker, requirement.marker = requirement.marker, None
        if marker is None or marker.evaluate({"extra": ""}):
            yield requirement, False
        elif any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement, True


def _fetched(requirement: Requirement, installer: Sequence[str], folder: Path) -> Distribution:
    """Return the description of a package from the index, which is put into the folder and not installed."""
    plain = Requirement(str(requirement))
    plain.extras = set()
    _run([*installer, "--quiet", "--no-deps", "--target", str(folder), str(plain)])
    return next(iter(distributions(path=[str(folder)])))


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


def _installer() -> list[str]:
    """Return the command that installs into this interpreter's environment."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    return fail("Neither pip nor uv is there to install packages with; `python -m ensurepip` installs pip.")


def _run(installing: Sequence[str]) -> None:
    # It must not ask for a password: its question would not be seen.
    done = subprocess.run(  # noqa: S603 - pip, with checked names
        installing, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}"
        fail(f"{reason} (`{shlex.join(installing)}`)")
