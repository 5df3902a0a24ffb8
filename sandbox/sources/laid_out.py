"""The sources of versions as files of the home, `sources/HASH.py`: copies of what the database has, for who loads them.

They are not synced, so a power cut may leave any of them out, empty or cut off, and other programs may touch them. So
none is trusted: a scheduler compares those of each version with the database when it first needs it, and a process that
loads a version compares each with the hash that is its name, and asks the scheduler for one that is wrong.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from asynsched.authoring.supervisor import SupervisorError
from asynsched.errors import AsynschedError
from asynsched.protocol.messages import CodeVersion

Ask = Callable[[str], str]
"""Returns the text with a content hash, from the database. Raises SupervisorError."""
PRIVATE_FILE = 0o600


class SourceDamagedError(AsynschedError):
    """A source of a version cannot be had. Nothing of the version was imported."""


def lay_out_source(folder: Path, content_hash: str, text: str) -> None:
    """Write a source, unless it is there and right. Raises OSError."""
    path, data = folder / f"{content_hash}.py", text.encode("utf-8", "surrogatepass")
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    # Renamed into place, so that a reader never sees half of it.
    unfinished = path.with_suffix(f".{os.urandom(8).hex()}")
    unfinished.touch(mode=PRIVATE_FILE)
    unfinished.write_bytes(data)
    unfinished.replace(path)


def read_source(folder: Path, content_hash: str) -> str:
    """Return the text of a source.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not what its name says.
    """
    data = (folder / f"{content_hash}.py").read_bytes()
    if hashlib.sha256(data).hexdigest() != content_hash:
        raise ValueError("it is damaged: its hash is not its name")
    return data.decode("utf-8")


def read_sources(folder: Path, code: CodeVersion, ask: Ask | None = None) -> dict[str, str]:
    """Return the texts of a version by their content hash, and replace the files that were wrong.

    Args:
        ask: Returns what the database has; None: nobody can be asked.

    Raises:
        SourceDamagedError: One is wrong, and the database does not have it either, or nobody can be asked.
    """
    texts: dict[str, str] = {}
    for ref in code.sources:
        try:
            texts[ref.content_hash] = read_source(folder, ref.content_hash)
        except (OSError, ValueError) as exc:
            wrong = f"the source {folder / ref.content_hash}.py of {ref.path} cannot be used: {exc}"
            if ask is None:
                raise SourceDamagedError(wrong) from exc
            texts[ref.content_hash] = _mended(folder, ref.content_hash, ask, wrong, code)
    return texts


def _mended(folder: Path, content_hash: str, ask: Ask, wrong: str, code: CodeVersion) -> str:
    try:
        text = ask(content_hash)
    except SupervisorError as exc:
        missing = f"the database does not give it either ({exc})"
    else:
        if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == content_hash:
            with suppress(OSError):  # this process has it; the next one asks again
                lay_out_source(folder, content_hash, text)
            return text
        missing = "what the database has is damaged, too"
    version = f" It belongs to the version {code.version_hash[:12]}." if code.version_hash else ""
    raise SourceDamagedError(
        f"{wrong}; {missing}.{version} If the file is unchanged, run `asynsched dags reparse DAG_ID` and clear the"
        " task; else trigger a new run, which has the file as it is now."
    )
