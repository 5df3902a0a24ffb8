"""A state of the DAG folder on disk: a folder, or a commit of the repository that holds the DAG folder.

Git writes the files of a commit into a temporary folder, through an index of its own: the repository, its index and its
worktrees stay as they are, and no hook runs. All of the commit is written, because the DAG folder may need its
neighbours (`plugins`, `include`).
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from msgspec.structs import replace

from asynsched.errors import SettingsError
from asynsched.executors.base import parted_environment
from asynsched.parsing.processes.sandbox_parser import files_with_secrets
from asynsched.settings import Settings

SUBMODULE = "160000 "
"""The mode of a submodule in the listing of a commit's files."""
GIT_SECONDS = 120
"""How long one command of Git may take."""
_OF_CALLER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables that a hook or an alias of Git sets for its own repository."""
_MOVED = ("airflow_cfg", "plugins_folder")
"""Settings with a path that moves with the repository."""


class StateOnDisk(NamedTuple):
    """A state that can be parsed: its name for people, and the settings with its folder as the DAG folder."""

    name: str
    settings: Settings


@contextmanager
def state_on_disk(settings: Settings, where: str, *, repository_of: Path) -> Iterator[StateOnDisk]:
    """Return the state that a user has named, until the end of the block.

    Args:
        settings: The scheduler's settings.
        where: A folder, or a name of a commit: a branch, a tag, a hash, `HEAD~1`.
        repository_of: The DAG folder in the working tree of the repository that has the commit.

    Raises:
        SettingsError: There is neither such a folder nor such a commit; the message says which was looked for.
    """
    # The files in use stay hidden where those of another state take their place.
    hidden = (*settings.parse.hidden, *files_with_secrets(settings))
    settings = replace(settings, parse=replace(settings.parse, hidden=hidden))
    if os.path.isdir(where):  # noqa: PTH112 - a name of a commit is not a path
        yield StateOnDisk(where, replace(settings, dags_folder=str(Path(where).absolute())))
        return
    commit = _find_commit(where, repository_of)
    with TemporaryDirectory(prefix="asynsched-preview-") as folder:
        tree = Path(folder).resolve() / "tree"
        tree.mkdir()
        _write_tree(commit, tree, index=Path(folder) / "index")
        dags = tree / commit.prefix
        if not dags.is_dir():
            raise SettingsError(f"The commit {where!r} has no folder {commit.prefix or '.'}: nothing can be compared.")
        if not _is_within(dags, tree):
            raise SettingsError(f"In the commit {where!r}, {commit.prefix} is a link that leads out of the repository.")
        moved = {name: _moved(getattr(settings, name), commit.root, tree) for name in _MOVED}
        name = f"{where} ({commit.id[:12]})" if not commit.id.startswith(where) else where
        yield StateOnDisk(name, replace(settings, dags_folder=str(dags), **moved))


class Commit(NamedTuple):
    """A commit, the root of its repository's working tree, and the DAG folder's path in there."""

    id: str
    root: Path
    prefix: str


def _find_commit(name: str, dags_folder: Path) -> Commit:
    if not dags_folder.is_dir():
        raise SettingsError(
            f"There is no folder {name!r}, and no DAG folder {dags_folder} whose repository could know it."
        )
    problem = f"There is no folder {name!r}, and"
    try:
        root, prefix = (
            _git("rev-parse", option, cwd=dags_folder).removesuffix("\n")
            for option in ("--show-toplevel", "--show-prefix")
        )
    except GitFailed as exc:
        raise SettingsError(f"{problem} the DAG folder {dags_folder} is in no Git repository: {exc}") from exc
    try:
        # `--end-of-options`: a name that begins with a dash is a name.
        found = _git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}", cwd=dags_folder)
    except GitFailed as exc:
        raise SettingsError(
            f"{problem} the repository {root} has no commit of that name; `git fetch` may bring it ({exc})"
        ) from exc
    return Commit(found.strip(), Path(root), prefix)


def _write_tree(commit: Commit, folder: Path, *, index: Path) -> None:
    options = (
        "core.sparseCheckout=false", "core.fsmonitor=false", "core.splitIndex=false", "submodule.recurse=false",
        f"core.hooksPath={os.devnull}",
    )  # fmt: skip
    given = [word for option in options for word in ("-c", option)]
    try:
        entries = _git("ls-tree", "-r", "-z", commit.id, "--", commit.prefix or ".", cwd=commit.root).split("\0")
        _git(
            *given, f"--work-tree={folder}", "read-tree", "--reset", "-u", commit.id,
            cwd=commit.root, env={"GIT_INDEX_FILE": str(index)},
        )  # fmt: skip
    except GitFailed as exc:
        raise SettingsError(f"The files of the commit {commit.id} cannot be written: {exc}") from exc
    if modules := [entry.partition("\t")[2] for entry in entries if entry.startswith(SUBMODULE)]:
        raise SettingsError(
            f"The commit {commit.id[:12]} does not have the files of its submodules ({', '.join(modules)}): check it"
            " out with them, and name that folder."
        )


def _moved(path: str | None, root: Path, tree: Path) -> str | None:
    """Return the path of a setting in the tree, if that has it, or else as it is."""
    if path is None:
        return None
    absolute = Path(path).absolute()
    if not absolute.is_relative_to(root):
        return path
    moved = tree / absolute.relative_to(root)
    return str(moved) if moved.exists() and _is_within(moved, tree) else path


def _is_within(path: Path, tree: Path) -> bool:
    """Whether a path of a commit leads into its own tree: parses may read where it leads, on behalf of any author."""
    return path.resolve().is_relative_to(tree)


class GitFailed(Exception):
    """A command of Git failed; the message is Git's, in one line."""


def _git(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    shown, _ = parted_environment(os.environ)  # Git needs nothing of what tasks must not see
    inherited = {name: value for name, value in shown.items() if name not in _OF_CALLER}
    try:
        ended = subprocess.run(  # noqa: S603 - the words are not a shell's
            ["git", *words],  # noqa: S607 - the user's own Git
            cwd=cwd, env=inherited | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"} | dict(env or {}),
            stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError as exc:
        raise GitFailed("there is no command git") from exc
    except subprocess.TimeoutExpired as exc:
        raise GitFailed(f"git {words[0]} has not ended within {GIT_SECONDS} s") from exc
    if ended.returncode != 0:
        said = ended.stderr.decode(errors="replace").split("\n", 1)[0].removeprefix("fatal: ")
        raise GitFailed(said or f"git {words[0]} ended with code {ended.returncode}")
    return os.fsdecode(ended.stdout)
