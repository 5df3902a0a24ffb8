"""DAG files in zip archives: parsed, and imported from, without trusting the archive."""

import zipfile
from pathlib import Path

import pytest

from sandbox.sources import archives
from tests.integration.sandbox.conftest import Parser

ETL = "import helper\nfrom package.inner import VALUE\nimport pkgutil\nfrom asynsched import DAG\ndag = DAG('zipped')\n"


def _write(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture
def archive(parse_once: Parser) -> Path:
    path = parse_once.dags / "team" / "dags.zip"
    path.parent.mkdir()
    files = {
        "etl.py": ETL + "print(pkgutil.get_data('package', 'data.txt'), __file__)\n",
        "other.py": "from asynsched import DAG\ndag = DAG('other')\n",
        "helper.py": "",
        "package/__init__.py": "",
        "package/inner.py": "VALUE = 1\n",
        "package/data.txt": "data",
    }
    _write(path, files)
    return path


def test_dag_file_in_an_archive_imports_from_the_archive(archive: Path, parse_once: Parser) -> None:
    parsed = parse_once.file("team/dags.zip/etl.py")
    assert parsed.dag_ids == ["zipped"]
    assert parsed.lines == [f"b'data' {archive}/etl.py"]
    assert [source.path for source in parsed.report.sources] == [
        f"team/dags.zip/{name}" for name in ("etl.py", "helper.py", "package/__init__.py", "package/inner.py")
    ]


def test_whole_archive_has_the_dags_of_all_files_at_its_root(archive: Path, parse_once: Parser) -> None:
    assert sorted(parse_once.file("team/dags.zip").dag_ids) == ["other", "zipped"]


def test_archive_outside_of_any_dag_folder_is_found_by_its_path(archive: Path, parse_once: Parser) -> None:
    parse_once.dags = parse_once.dags / "team"
    assert parse_once.file("dags.zip/other.py").dag_ids == ["other"]


BAD = {
    "no archive": (lambda path: path.write_text("no zip"), "is not a zip archive"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-30]), "is not a zip archive"),
    "damaged": (lambda path: _overwrite(path, 45, b"\xff" * 20), "cannot be"),
    "leads out": (lambda path: _write(path, {"../etl.py": ""}), "leads out of the archive"),
    "absolute": (lambda path: _write(path, {"/etl.py": ""}), "leads out of the archive"),
    "bomb": (lambda path: _write(path, {"etl.py": "#" * (archives.MAX_SOURCE_BYTES + 1)}), "is larger than 16 MiB"),
    "larger than it may be": (lambda path: _declare(path, 0x7FFFFFFF), "unpacks into more than 256 MiB"),
}


def _overwrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def _declare(path: Path, size: int) -> None:
    """Change the size that the archive's directory gives for its first file."""
    _overwrite(path, path.read_bytes().index(b"PK\x01\x02") + 24, size.to_bytes(4, "little"))


@pytest.mark.parametrize("name", BAD)
def test_bad_archive_is_an_error_of_that_archive(name: str, archive: Path, parse_once: Parser) -> None:
    spoil, words = BAD[name]
    spoil(archive)
    error = parse_once.file("team/dags.zip/etl.py").error
    assert error.kind == "archive"
    assert words in error.message
    assert error.message.startswith("team/dags.zip/etl.py: ")


def test_module_that_a_function_may_import_spoils_nothing_by_being_bad(archive: Path, parse_once: Parser) -> None:
    huge = "#" * (archives.MAX_SOURCE_BYTES + 1)
    _write(archive, {"etl.py": f"{ETL}def later():\n    import huge\n", "helper.py": "", "huge.py": huge,
                     "package/__init__.py": "", "package/inner.py": "VALUE = 1\n"})  # fmt: skip
    assert parse_once.file("team/dags.zip/etl.py").dag_ids == ["zipped"]


def test_file_that_the_archive_has_not_is_unreadable(archive: Path, parse_once: Parser) -> None:
    error = parse_once.file("team/dags.zip/gone.py").error
    assert error.kind == "unreadable"
    assert "gone.py" in error.message


def test_folder_called_like_an_archive_is_a_folder(parse_once: Parser) -> None:
    assert parse_once("print('plain')", name="folder.zip/dag.py").lines == ["plain"]
