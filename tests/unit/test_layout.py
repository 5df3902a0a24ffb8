"""The tree is the one that the design names, and DAG files import nothing heavy."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    "asynsched", "sandbox", "tests", "examples", "docs",
    "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE",
}  # fmt: skip
MODULES = (
    "asynsched/__init__.py", "asynsched/scheduler.py", "asynsched/channels.py", "asynsched/service.py",
    "asynsched/settings.py", "asynsched/clock.py", "asynsched/errors.py", "asynsched/states.py",
    "asynsched/authoring", "asynsched/serialization", "asynsched/timetables", "asynsched/parsing",
    "asynsched/scheduling", "asynsched/scheduling/rules", "asynsched/executors", "asynsched/executors/base.py",
    "asynsched/executors/heartbeat.py", "asynsched/store", "asynsched/store/migrations", "asynsched/housekeeping",
    "asynsched/cli", "sandbox/parse.py", "sandbox/keeper.py", "sandbox/template.py", "sandbox/run.py",
    "sandbox/confine.py", "asynsched/protocol/messages.py", "tests/unit", "tests/store", "tests/integration",
    "tests/acceptance", "tests/conformance", "tests/benchmarks", "tests/support", "examples/dags", "docs",
)  # fmt: skip
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
HEAVY = {
    "sqlalchemy", "pydantic", "structlog", "asyncio", "anyio", "alembic", "aiosqlite", "asyncpg", "typer", "click",
    "rich", "watchfiles", "inotify_simple", "croniter", "jinja2", "jsonschema",
}  # fmt: skip


def tracked(*patterns: str) -> list[str]:
    """Return the files that belong to the project: those under version control, or all where there is none."""
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern) if path.is_file()]


def test_top_level_holds_what_was_agreed_and_nothing_else():
    found = {name.split("/")[0] for name in tracked("*")}
    assert {name for name in found if not name.startswith(".")} == TOP_LEVEL


def test_every_part_that_the_design_names_is_there():
    assert [name for name in MODULES if not (ROOT / name).exists()] == []


def test_modules_are_named_for_what_they_know():
    sources = [ROOT / name for name in tracked("asynsched/*.py", "sandbox/*.py")]
    assert [path.name for path in sources if path.stem in VAGUE_NAMES] == []


def test_importing_all_names_for_dag_files_by_a_star_loads_nothing_heavy():
    program = "import sys; before = set(sys.modules)\nfrom asynsched import *\nprint(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "asynsched.authoring.dag" in loaded
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()
