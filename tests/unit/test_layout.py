"""The top level is the one that was agreed, names say something, and DAG files import nothing heavy."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    "asynsched", "sandbox", "tests", "examples", "docs",
    "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE",
}  # fmt: skip
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
HEAVY = {
    "sqlalchemy", "pydantic", "structlog", "asyncio", "anyio", "alembic", "aiosqlite", "asyncpg", "typer", "click",
    "rich", "watchfiles", "inotify_simple", "croniter", "jinja2", "jsonschema",
}  # fmt: skip


def tracked(*patterns: str) -> list[str]:
    """Return the files that belong to the project: those under version control, or all without version control."""
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern) if path.is_file()]


def test_top_level_holds_what_was_agreed_and_nothing_else():
    found = {name.split("/")[0] for name in tracked("*")}
    assert {name for name in found if not name.startswith(".")} == TOP_LEVEL


def test_no_module_is_called_utils_or_the_like():
    sources = [ROOT / name for name in tracked("asynsched/*.py", "sandbox/*.py")]
    assert [path.name for path in sources if path.stem in VAGUE_NAMES] == []


def test_importing_all_names_for_dag_files_by_a_star_loads_nothing_heavy():
    program = "import sys; before = set(sys.modules)\nfrom asynsched import *\nprint(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "asynsched.authoring.dag" in loaded
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()
