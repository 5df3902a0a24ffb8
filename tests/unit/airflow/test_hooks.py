"""The hooks of the standard provider: folders, commands and package indexes."""

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from asynsched.airflow.finder import offer_secrets_backend
from asynsched.airflow.hooks import FSHook, PackageIndexHook
from asynsched.authoring.operators.subprocess_hook import SubprocessHook
from tests.support.waiting import until


@pytest.fixture
def connect(monkeypatch):
    """Return a function that sets a connection in the environment."""
    offer_secrets_backend()

    def connect(conn_id, **fields):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return connect


def test_a_folder_is_the_path_in_its_connection_and_its_test_looks_for_it(connect, tmp_path):
    connect("fs_default", conn_type="fs", extra={"path": str(tmp_path)})
    hook = FSHook()
    assert (hook.get_path(), hook.get_conn()) == (str(tmp_path), None)
    assert hook.test_connection() == (True, f"The path {tmp_path} exists.")
    connect("gone", conn_type="fs", extra={"path": str(tmp_path / "gone")})
    assert FSHook("gone").test_connection() == (False, f"The path {tmp_path / 'gone'} does not exist.")
    connect("bare", conn_type="fs")
    assert FSHook(fs_conn_id="bare").get_path() == ""
    assert FSHook(fs_conn_id="bare").test_connection() == (False, "The connection's extra has no path.")


def test_a_command_logs_its_output_and_gives_its_exit_code_and_last_line(caplog, tmp_path, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("OUTER", "seen")
    done = SubprocessHook().run_command(["sh", "-c", "echo one; printf '\\377 two\\n' >&2; exit 3"])
    assert (done.exit_code, done.output) == (3, r"\xff two")
    assert [text for text in caplog.messages if text in ("one", r"\xff two")] == ["one", r"\xff two"]
    assert SubprocessHook().run_command(["sh", "-c", "echo $OUTER"]).output == "seen"
    assert SubprocessHook().run_command(["sh", "-c", "echo $OUTER$INNER"], env={"INNER": "own"}).output == "own"
    assert SubprocessHook().run_command(["pwd"], cwd=str(tmp_path)).output == str(tmp_path.resolve())
    assert not Path(SubprocessHook().run_command(["pwd"]).output).exists()


def test_a_running_command_and_what_it_started_end_by_a_signal(tmp_path):
    pipe, done, hook = tmp_path / "pipe", [], SubprocessHook()
    os.mkfifo(pipe)
    command = ["sh", "-c", f"(echo begun > {pipe}; sleep 600) & wait"]
    waiting = threading.Thread(target=lambda: done.append(hook.run_command(command, cwd=str(tmp_path))))
    waiting.start()
    assert pipe.read_text() == "begun\n"
    until(lambda: hook.sub_process is not None, "the hook has its process")
    hook.send_sigterm()
    waiting.join(30)
    assert [result.exit_code for result in done] == [-15]
    hook.send_sigterm()  # without effect


def test_the_address_of_a_package_index_has_the_login_of_its_connection(connect):
    connect("package_index_default", conn_type="package_index", host="https://packages.example/simple/")
    assert PackageIndexHook().get_conn() == "https://packages.example/simple/"
    fields = {"host": "https://packages.example:8443/simple/", "login": "me", "password": "a/b@c"}
    connect("closed", conn_type="package_index", **fields)
    hook = PackageIndexHook(pi_conn_id="closed")
    assert hook.get_connection_url() == "https://me:a%2Fb%40c@packages.example:8443/simple/"
    connect("empty", conn_type="package_index")
    with pytest.raises(ValueError, match="its host must be the URL of a package index"):
        PackageIndexHook("empty").get_connection_url()
