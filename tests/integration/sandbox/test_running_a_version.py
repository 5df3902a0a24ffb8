"""A version runs its recorded sources, even if the files have changed since."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from asynsched.protocol.messages import CodeVersion, SourceRef
from asynsched.serialization.schema import ParseReport

RUN = """
import sys, msgspec, inspect, traceback
from asynsched.protocol.messages import CodeVersion
from sandbox.sources.local_imports import install_version
code, texts = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[CodeVersion, dict[str, str]])
module = install_version(code, texts.__getitem__)
result = vars(module).get("RESULT")
print(result() if callable(result) else result)
"""


def _record(dags: Path, name: str) -> ParseReport:
    command = [sys.executable, "-P", "-m", "sandbox.parse", str(dags / name), "--dags-folder", str(dags)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    report = msgspec.json.decode(done.stdout, type=ParseReport)
    assert not report.errors
    return report


def _run(dags: Path, report: ParseReport) -> str:
    refs = tuple(SourceRef(source.path, source.module, source.content_hash) for source in report.sources)
    texts = {source.content_hash: source.text for source in report.sources}
    data = msgspec.json.encode((CodeVersion("v", str(dags), refs), texts))
    done = subprocess.run([sys.executable, "-P", "-c", RUN], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture
def dags(tmp_path: Path) -> Path:
    folder = tmp_path / "dags"
    files = {
        "dag.py": "import inspect, lazy_loader\nfrom package.sub import NAME\nimport space.module\n"
        "def body():\n    return 'first'\n"
        "RESULT = [NAME, space.module.NAME, body(), inspect.getsource(body), __file__, lazy_loader.load()]\n",
        "package/__init__.py": "",
        "package/sub/__init__.py": "from ..base import NAME\n",
        "package/base.py": "NAME = 'base'\n",
        "space/module.py": "NAME = 'module'\n",
        "lazy_loader.py": "from pathlib import Path\n"
        "def load():\n    return Path(__file__).with_name('data').read_text()\n",
        "data": "old data",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_recorded_sources_run_after_the_files_have_changed(dags: Path) -> None:
    report = _record(dags, "dag.py")
    for path in dags.rglob("*.py"):
        path.write_text("# new\n\nraise SystemExit('this is the new code')\n")
    (dags / "data").write_text("new data")
    source = "def body():\n    return 'first'\n"
    assert _run(dags, report) == str(["base", "module", "first", source, str(dags / "dag.py"), "new data"])


def test_recorded_sources_run_after_the_files_are_gone(dags: Path) -> None:
    report = _record(dags, "dag.py")
    shutil.rmtree(dags / "package")
    shutil.rmtree(dags / "space")
    (dags / "dag.py").unlink()
    assert _run(dags, report).startswith("['base', 'module', 'first'")


LATER = {
    "dag.py": """
import importlib, sys
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import for_types
class Work:
    def do(self):
        import tool, json, folder.deep.part
        from package import sub
        chosen = importlib.import_module("chosen")
        computed = importlib.import_module("comp" + "uted")
        found = [module.NAME for module in (tool, sub, chosen, folder.deep.part, computed)]
        return found + [tool.tell(), hasattr(json, "dumps")]
def RESULT(): import re; return Work().do()
def never(): import broken
""",
    "tool.py": "NAME = 'tool'\ndef tell():\n    from package.base import NAME\n    return NAME\n",
    "package/__init__.py": "",
    "package/base.py": "NAME = 'base'\n",
    "package/sub.py": "if True:\n    from .inner import NAME\n",
    "package/inner.py": "NAME = 'inner'\n",
    "folder/deep/part.py": "NAME = 'part'\n",
    "chosen.py": "NAME = 'chosen'\n",
    "broken.py": "def",
    "computed.py": "NAME = 'computed'\n",
    "for_types.py": "raise SystemExit\n",
    "json.py": "raise SystemExit\n",
    "unused.py": "raise SystemExit\n",
}


@pytest.mark.parametrize("is_archive", [False, True], ids=["folder", "archive"])
def test_modules_that_functions_import_belong_to_the_version(tmp_path: Path, *, is_archive: bool) -> None:
    if is_archive:
        with zipfile.ZipFile(tmp_path / "dags.zip", "w") as archive:
            for name, text in LATER.items():
                archive.writestr(name, text)
    else:
        for name, text in LATER.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    report = _record(tmp_path, "dags.zip/dag.py" if is_archive else "dag.py")
    recorded = [source.path.removeprefix("dags.zip/") for source in report.sources]
    assert recorded[0] == "dag.py"
    not_recorded = LATER.keys() - set(recorded)
    assert not_recorded == {"computed.py", "for_types.py", "json.py", "unused.py"}
    if not is_archive:
        for name in LATER:
            (tmp_path / name).write_text("NAME = 'from the disk'\n")
        found = ["tool", "inner", "chosen", "part", "from the disk", "base", True]
        assert _run(tmp_path, report) == str(found)


@pytest.mark.parametrize("place", ["", "lib.zip/"], ids=["folder", "archive"])
@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("sandbox", "sandbox.py"),
        ("sandbox", "sandbox/__init__.py"),
        ("sandbox.processes", "sandbox/processes.py"),
    ],
    ids=["module", "package", "namespace"],
)
def test_a_module_called_sandbox_is_the_folders_own(tmp_path: Path, module: str, path: str, place: str) -> None:
    main = f"from {module} import NAME\ndef RESULT():\n    import {module} as found\n    return [NAME, found.NAME]\n"
    texts = {"dag.py": main, path: "NAME = 'of the folder'\n"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if place:
            with zipfile.ZipFile(tmp_path / "lib.zip", "a") as archive:
                archive.writestr(name, text)
        else:
            (tmp_path / name).write_text(text)
    report = _record(tmp_path, f"{place}dag.py")
    assert [source.module for source in report.sources][1:] == [module]
    if not place:
        shutil.rmtree(tmp_path)
    assert _run(tmp_path, report) == "['of the folder', 'of the folder']"


def test_module_outside_of_the_version_comes_from_the_disk_without_byte_code(dags: Path) -> None:
    (dags / "dag.py").write_text("try:\n    from late import RESULT\nexcept ImportError:\n    RESULT = None\n")
    report = _record(dags, "dag.py")
    (dags / "late.py").write_text("RESULT = 'late'\n")
    assert _run(dags, report) == "late"
    assert not list(dags.rglob("__pycache__"))


def test_version_of_an_archive_runs_after_the_archive_is_gone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "dags.zip", "w") as archive:
        archive.writestr("dag.py", "import helper\nRESULT = helper.NAME\n")
        archive.writestr("helper.py", "NAME = 'zipped'\n")
    report = _record(tmp_path, "dags.zip/dag.py")
    (tmp_path / "dags.zip").unlink()
    assert _run(tmp_path, report) == "zipped"
