"""Provider packages are installed without Airflow, and their modules work in DAG files."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from click.exceptions import Exit
from packaging.requirements import Requirement

from asynsched.cli.providers import BROUGHT_BY_AIRFLOW, PREFIX, _chosen, _Installer
from tests.support.message_servers import serving_http

DATABASES = ("sqlite",)

INFO = """
def get_provider_info():
    return {
        "name": "Acme",
        "connection-types": [{"connection-type": "acme", "hook-class-name": "airflow.providers.acme.hooks.AcmeHook"}],
    }
"""
HOOKS = """
from airflow.providers.acmebase.shout import shout
from airflow.sdk import BaseHook

class AcmeHook(BaseHook):
    def get_conn(self):
        return shout(self.get_connection("acme_default").host)
"""
USES = """
    from airflow.providers.acme.hooks import AcmeHook
    from airflow.sdk import DAG, task

    with DAG("uses", schedule=None):

        @task
        def connects():
            print(AcmeHook().get_conn())

        connects()
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: list[str], entry: str = "") -> None:
    """Write a package of these modules into the folder, as an index would have it."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    needs += "".join(f"Provides-Extra: {extra}\n" for one in requires for extra in re.findall("extra == '(.*)'", one))
    texts = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if entry:
        texts[f"{info}/entry_points.txt"] = f"[apache_airflow_provider]\nprovider_info={entry}\n"
    texts[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*texts, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """A folder with packages, which stands in for the index."""
    folder = tmp_path_factory.mktemp("index")
    prefix, package = "apache-airflow-providers-", "airflow/providers"
    wheel(
        folder, f"{prefix}acme", "1.0",
        {f"{package}/acme/__init__.py": "", f"{package}/acme/info.py": INFO, f"{package}/acme/hooks.py": HOOKS},
        ["apache-airflow>=2.11", f"{prefix}acmebase>=1", "acme-extra; extra == 'more'"],
        "airflow.providers.acme.info:get_provider_info",
    )  # fmt: skip
    # No package requires tenacity: Airflow's core brings it.
    shout = {f"{package}/acmebase/shout.py": "import tenacity\nfrom acmelib import loud as shout\n"}
    wheel(folder, f"{prefix}acmebase", "1.2", shout, ["apache-airflow>=2.11", "acmelib>=2"])
    wheel(folder, "acmelib", "2.1", {"acmelib.py": "loud = str.upper\n"}, [])
    wheel(folder, "acme-extra", "1.0", {"acme_extra.py": ""}, [])
    for needed in BROUGHT_BY_AIRFLOW:
        name = Requirement(needed).name
        wheel(folder, name, "99.0", {f"{name.replace('-', '_')}.py": ""}, [])
    both = ["apache-airflow>=2.11", f"{prefix}acmebase>=1", f"{prefix}acmelast"]
    wheel(folder, f"{prefix}zeta", "3.0", {f"{package}/zeta/__init__.py": ""}, both)
    wheel(folder, f"{prefix}acmelast", "4.0", {f"{package}/acmelast/__init__.py": ""}, ["apache-airflow>=2.11"])
    wheel(folder, f"{prefix}acmebase", "1.0", shout, ["apache-airflow>=2.11", "acmelib>=2"])
    for its_version, needs in [("1.0", "1"), ("2.0", "1.2"), ("3.0", "1.2")]:
        airflow = "apache-airflow>=99" if its_version == "3.0" else "apache-airflow-core>=3"
        wheel(folder, f"{prefix}acmeweb", its_version, {}, [airflow, f"{prefix}acmebase>={needs}", f"{prefix}standard"])
    wheel(folder, f"{prefix}newer", "9.0", {f"{package}/newer/__init__.py": ""}, ["apache-airflow>=99"])
    return folder


@pytest.fixture(scope="module")
def python(backend, tmp_path_factory) -> Path:
    """The interpreter of an environment of its own, one for each kind of database, which has everything of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
    interpreter = folder / "bin" / "python"
    asking = [interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asking, check=True, capture_output=True, text=True).stdout.strip()
    Path(own, "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return interpreter


@pytest.fixture
def site(new_site):
    site = new_site()
    site.write("uses.py", USES)
    return site


@pytest.fixture
def asynsched(python, index, site):
    """Return a function that runs a command in that environment, and requires an exit code."""

    def run(*arguments: str, code: int = 0) -> str:
        environment = site.environment | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PATH": os.defpath}
        command = [python, "-P", "-m", "asynsched", *arguments]
        done = subprocess.run(command, env=environment, cwd=site.root, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


def test_a_provider_is_installed_with_what_it_needs_and_without_airflow(asynsched, site):
    up = asynsched("up", str(site.dags), "--until-idle")
    assert "install its provider: asynsched providers install acme" in up
    told = asynsched("providers", "install", "acme[more]")
    assert "Installing apache-airflow-providers-acme==1.0, apache-airflow-providers-acmebase==1.2, without" in told
    assert "Installing what they need: acme-extra==1.0, acmelib==2.1, asgiref==99.0" in told
    listed = asynsched("providers", "list")
    assert "acme" in listed
    assert "AcmeHook" not in listed
    assert "airflow.providers.acme.hooks.AcmeHook" in asynsched("providers", "list", "--wide")
    assert "Nothing is missing" in asynsched("providers", "install", "acme[more]")
    told = asynsched("providers", "install", "acme", "zeta")
    assert "Installing apache-airflow-providers-acmelast==4.0, apache-airflow-providers-zeta==3.0, without" in told
    asynsched("connections", "add", "acme_default", "--conn-uri", "acme://somewhere")
    assert "SOMEWHERE" in asynsched("dags", "test", "uses")
    site.write("older.py", "from airflow.providers.acmebase.shout import shot  # for a DAG")
    needed = asynsched("migrate", str(site.dags), code=1)
    assert "the installed version of the provider acmebase does not have this name; did you mean shout?" in needed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("celery", "it is an executor of Airflow's; for asynsched's own, install asynsched[celery]"),
        ("standard", "it is a part of asynsched"),
        ("newer", "apache-airflow-providers-newer 9.0 depends on apache-airflow>=99"),
        ("newer", "asynsched is like Airflow 3"),
        ("nowhere", "No matching distribution found for apache-airflow-providers-nowhere"),
        ("a b", "'a b' does not name a provider; write for example http"),
    ],
)
def test_a_provider_that_cannot_work_is_refused_with_the_reason(asynsched, name, said):
    assert said in asynsched("providers", "install", name, code=1)


def test_versions_of_providers_fit_one_another_and_the_airflow_that_is_served(asynsched):
    def pins(*names):
        told = asynsched("providers", "install", *names)
        line = next((line for line in told.splitlines() if "Installing apache" in line), "")
        return line.removeprefix("Installing ").removesuffix(", without Airflow.").replace(PREFIX, "").split(", ")

    assert pins("acmebase==1.0", "acmeweb") == ["acmebase==1.0", "acmeweb==1.0"]
    assert pins("acmeweb") == ["acmebase==1.2", "acmeweb==2.0"]
    refused = asynsched("providers", "install", "acmebase==1.0", "acmeweb==2.0", code=1)
    assert "No versions of these packages fit one another: " in refused
    assert f"The user requested {PREFIX}acmebase==1.0" in refused
    assert f"{PREFIX}acmeweb 2.0 depends on {PREFIX}acmebase>=1.2" in refused


def test_uv_chooses_the_same_versions(index, tmp_path, capsys):
    uv, python = str(Path(sysconfig.get_path("scripts")) / "uv"), tmp_path / "empty"
    subprocess.run([uv, "venv", "--python", sys.executable, python], check=True, capture_output=True)
    command = [uv, "pip", "install", "--python", str(python), "--no-index", "--find-links", str(index)]

    def pins(*names):
        wanted = [Requirement(PREFIX + name) for name in names]
        chosen = _chosen(wanted, _Installer(command, is_pip=False), tmp_path)
        return [pin.removeprefix(PREFIX) for pin in chosen if pin.startswith(f"{PREFIX}acme")]

    assert pins("acmebase==1.0", "acmeweb") == ["acmebase==1.0", "acmeweb==1.0"]
    assert pins("acmeweb") == ["acmebase==1.2", "acmeweb==2.0"]
    with pytest.raises(Exit):
        pins("acmebase==1.0", "acmeweb==2.0")
    refused = capsys.readouterr().err
    assert "No versions of these packages fit one another: " in refused
    assert f"{PREFIX}acmeweb==2.0 depends on {PREFIX}acmebase>=1.2" in refused


def test_an_index_that_wants_a_password_is_no_question_that_nobody_sees(python, site):
    terminal, end = os.openpty()
    with serving_http() as index:
        index.status = 401
        environment = site.environment | {"PIP_INDEX_URL": f"{index.url}/", "PATH": os.defpath}
        command = [python, "-P", "-m", "asynsched", "providers", "install", "other"]
        done = subprocess.run(
            command, env=environment, cwd=site.root, stdin=end, capture_output=True, text=True, check=False, timeout=60
        )
    os.close(terminal)
    os.close(end)
    assert done.returncode == 1
    assert "No matching distribution found for apache-airflow-providers-other" in done.stderr
