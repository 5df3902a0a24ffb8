"""Later versions of asynsched, each one schema step ahead of the one before: copies of this one, with additions."""

import itertools
import shutil
from pathlib import Path

import asynsched
import sandbox
from asynsched.store.engines.opening import HEAD
from asynsched.store.schema import OLDEST_BESIDE, REVISIONS

REVISION = '''"""What a later version adds."""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("dag", "dag_run", "task_instance", "scheduler", "xcom"):
        op.add_column(table, sa.Column("new_in_{revision}", sa.Text(), nullable=True))
        op.create_index(f"ix_{{table}}_new_in_{revision}", table, ["new_in_{revision}"])
    op.create_table("new_in_{revision}", sa.Column("id", sa.Integer(), primary_key=True))
'''


def make_newer(folder: Path, steps: int) -> Path:
    """Make a version that is this many schema steps ahead, and return its PYTHONPATH.

    Each step has a migration that adds tables, columns and indexes, and a later version of the package and of the
    protocol between its processes. As is promised, each lets the version of one step before go on beside it.
    """
    path = folder / f"newer-{steps}"
    for package in (asynsched, sandbox):
        source = Path(package.__file__).parent
        shutil.copytree(source, path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    revisions = [HEAD, *(f"{int(HEAD) + step:04}" for step in range(1, steps + 1))]
    for before, revision in itertools.pairwise(revisions):
        script = path / "asynsched/store/migrations/versions" / f"revision_{revision}.py"
        script.write_text(REVISION.format(revision=revision, before=before))
    known = ", ".join(f'"{revision}"' for revision in revisions[1:])
    schema = path / "asynsched/store/schema.py"
    present = ", ".join(f'"{revision}"' for revision in REVISIONS)
    _replace(schema, f"REVISIONS = ({present})", f"REVISIONS = ({present}, {known})")
    _replace(schema, f'OLDEST_BESIDE = "{OLDEST_BESIDE}"', f'OLDEST_BESIDE = "{revisions[-2]}"')
    _replace(path / "asynsched/_version.py", f'"{asynsched.__version__}"', f'"99.{steps}"')
    _replace(path / "asynsched/protocol/messages.py", "PROTOCOL_VERSION = 1", f"PROTOCOL_VERSION = {1 + steps}")
    return path


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new))
