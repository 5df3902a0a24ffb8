"""Paths that lead into zip archives of DAGs."""

ARCHIVE_SUFFIX = ".zip"


def split_archive_path(path: str) -> tuple[str, str] | None:
    """Return the archive and the name inside it (empty for the archive itself), or None where there is no archive.

    >>> split_archive_path("team/dags.zip/etl.py")
    ('team/dags.zip', 'etl.py')
    """
    parts = path.split("/")
    for index, part in enumerate(parts):
        if part.endswith(ARCHIVE_SUFFIX):
            return "/".join(parts[: index + 1]), "/".join(parts[index + 1 :])
    return None
