"""`python -P -m sandbox.parse FILE`: parses one DAG file in confinement, prints its ParseReport as one JSON document.

Exit codes: 0 when the report has no errors, 1 when it has some, 2 for wrong usage.

The process that this starts in is trusted and small; it never imports the file, but forks the process that does.
"""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from asynsched.protocol.home_files import scratch_folder
from asynsched.protocol.parse_messages import ParseLimits, decode_limits
from asynsched.serialization.schema import ParseQuestions, ParseReport
from sandbox.parsing import supervise
from sandbox.parsing.importing import ParseRequest, enter_installation
from sandbox.processes import hear_of_children, of_parse, set_title
from sandbox.sources.local_imports import ARCHIVE_SUFFIX


def main(arguments: list[str] | None = None) -> int:
    """Parse the file that the arguments name, print the report, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        home = Path(os.environ.get("ASYNSCHED_HOME", ".asynsched")).absolute()
        limits = decode_limits(options.limits) if options.limits else ParseLimits(hidden=(str(home),))
    except ValueError as exc:
        parser.error(str(exc))
    dags_folder, path = locate(options.file, options.dags_folder)
    set_title(f"guardian of the {of_parse(path)}", "--dags-folder", str(dags_folder))
    hear_of_children()
    supervise.become_guardian()
    supervise.enter_environment(limits.environment)
    enter_installation(limits)
    supervise.exit_by_signals()
    with scratch_folder(_scratch_base(options.scratch)) as scratch:
        request = ParseRequest(path, dags_folder, scratch, limits, ParseQuestions(now=datetime.now(UTC)))
        report = supervise.parse_file(request, supervise.HelperLifeline())
    return _print(report)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -P -m sandbox.parse", description="Parse one DAG file in confinement.")
    parser.add_argument("file", help="a DAG file, archive.zip/dag_file.py, or archive.zip")
    parser.add_argument("--dags-folder", help="the DAG folder; by default the file's own folder")
    parser.add_argument(
        "--scratch", help="an existing folder, for the parse's temporary files; by default the system's"
    )
    parser.add_argument("--limits", help="JSON object of limits; a missing limit has its default")
    return parser


def locate(file: str, dags_folder: str | None) -> tuple[Path, str]:
    """Return the DAG folder and the file's path in it; without a DAG folder around it, the file's own folder is it."""
    path = Path(os.path.abspath(file))  # noqa: PTH100 - `..` goes, symbolic links stay
    if dags_folder is not None:
        folder = Path(os.path.abspath(dags_folder))  # noqa: PTH100 - as above
        if path.is_relative_to(folder) and path != folder:
            return folder, path.relative_to(folder).as_posix()
    for above in reversed(path.parents):
        if above.name.endswith(ARCHIVE_SUFFIX) and not above.is_dir():
            return above.parent, path.relative_to(above.parent).as_posix()
    return path.parent, path.name


def _scratch_base(given: str | None) -> Path:
    if given is None:
        import tempfile

        given = tempfile.gettempdir()
        tempfile.tempdir = None  # it remembers: the file, in a fork of this process, has another one
    return Path(given).resolve()


def _print(report: ParseReport) -> int:
    sys.stdout.buffer.write(supervise.encode(report))
    sys.stdout.buffer.flush()
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
