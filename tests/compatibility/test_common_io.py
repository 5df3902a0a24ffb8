"""The common-io provider: XComs in an object storage, and copies of files."""

import gzip
import json

import pytest

pytestmark = pytest.mark.timeout(600)
FILES = """
    import os
    from datetime import datetime

    from airflow.providers.common.io.operators.file_transfer import FileTransferOperator
    from airflow.sdk import DAG, ObjectStoragePath, task

    base = ObjectStoragePath(os.environ["FOLDER"])

    with DAG("files", schedule="@once", start_date=datetime(2026, 1, 1)):

        @task
        def makes():
            (base / "from.txt").write_text("hello")
            return {"large": ["x" * 100, datetime(2026, 1, 1)]}

        @task
        def small():
            return "small"

        @task
        def reads(made, small):
            assert made == {"large": ["x" * 100, datetime(2026, 1, 1)]}, made
            assert small == "small"
            assert (base / "to.txt").read_text() == "hello"

        copies = FileTransferOperator(task_id="copies", src=base / "from.txt", dst=str(base / "to.txt"))
        made = makes()
        made >> copies >> reads(made, small())
"""


def test_large_xcoms_are_kept_in_the_storage_and_files_are_copied(site, tmp_path):
    site.write("files.py", FILES)
    (tmp_path / "folder").mkdir()
    site.env |= {
        "FOLDER": (tmp_path / "folder").as_uri(),
        "ASYNSCHED_PARSE__ENVIRONMENT": "FOLDER",
        "ASYNSCHED_XCOM_BACKEND": "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH": (tmp_path / "xcoms").as_uri(),
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD": "50",
        "AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_COMPRESSION": "gzip",
    }
    site.succeed("files")
    [kept] = (tmp_path / "xcoms").rglob("*.gz")
    assert json.loads(gzip.decompress(kept.read_bytes()))["large"][0] == "x" * 100
    assert f"file://{kept}" in site.run("tasks", "xcom", "files", "latest", "makes").stdout
    assert "small" in site.run("tasks", "xcom", "files", "latest", "small").stdout
