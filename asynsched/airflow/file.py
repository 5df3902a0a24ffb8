"""Files of DAGs, alone or in ZIP archives."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

ZIP_REGEX = re.compile(rf"((.*\.zip){re.escape(os.sep)})?(.*)")


def correct_maybe_zipped(fileloc: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """Return the archive of a file in a ZIP archive; for other files the file."""
    archive, _ = _parts(str(fileloc)) if fileloc else ("", "")
    return archive or fileloc


def open_maybe_zipped(fileloc: str, mode: str = "r") -> IO[str]:
    """Return a file, opened; it may be in a ZIP archive."""
    archive, inside = _parts(fileloc)
    if not archive:
        return open(fileloc, mode)  # noqa: PTH123 - pathlib would be loaded for this
    import io
    import zipfile

    return io.TextIOWrapper(zipfile.ZipFile(archive).open(inside))


def _parts(path: str) -> tuple[str, str]:
    """Return the archive, empty if there is none, and the path in it."""
    import zipfile

    found = ZIP_REGEX.search(path)
    assert found is not None
    _, archive, inside = found.groups()
    return (archive, inside) if archive and zipfile.is_zipfile(archive) else ("", path)


def get_unique_dag_module_name(file_path: str) -> str:
    """Return the name under which Airflow imports a DAG file. Raises ValueError if the path is no text."""
    import hashlib

    if not isinstance(file_path, str):
        raise ValueError(  # noqa: TRY004 - as Airflow
            f"the path of a DAG file must be a string, not {type(file_path).__name__}"
        )
    digest = hashlib.sha1(file_path.encode(), usedforsecurity=False).hexdigest()
    stem = os.path.splitext(os.path.basename(file_path))[0]  # noqa: PTH119, PTH122 - pathlib would be loaded for this
    return f"unusual_prefix_{digest}_{re.sub('[.-]', '_', stem)}"
