"""Why a keeper is not ready: only its own messages count, and not those of others in the same log."""

import os
from pathlib import Path

import pytest

from asynsched.errors import ExecutorError, KeeperGone
from asynsched.executors import keeper_connection
from asynsched.home import prepare_home
from asynsched.protocol.messages import READY
from asynsched.settings import Settings

BROKEN = "ModuleNotFoundError: No module named 'sandbox'"
OF_ANOTHER = "WARNING - The end of try t could not be written down: OSError: an error of the keeper before"


def start(home: Path, monkeypatch: pytest.MonkeyPatch, status: int, told: bytes, logged: str) -> None:
    """Start a keeper that says `told`, while `logged` is written to the log; its launcher ends with `status`."""

    def spawn(_home: Path, _settings: Settings, _options: object, _environment: object, ready: int) -> int:
        os.write(ready, told)
        with (home / "logs" / keeper_connection.KEEPER_LOG).open("a") as log:
            log.write(f"{logged}\n")
        return status

    prepare_home(home)
    monkeypatch.setattr(keeper_connection, "_spawn", spawn)
    keeper_connection.start_keeper(home, Settings())


def test_a_keeper_is_ready_once_it_says_so(tmp_path, monkeypatch):
    start(tmp_path, monkeypatch, 0, READY, OF_ANOTHER)


@pytest.mark.parametrize(
    ("status", "told", "logged", "kind", "reason"),
    [
        (0, b"", OF_ANOTHER, KeeperGone, "without a message"),
        (-9, b"", OF_ANOTHER, KeeperGone, "without a message"),
        (0, b"NotADirectoryError: attempts", OF_ANOTHER, ExecutorError, "NotADirectoryError: attempts"),
        (1, b"", BROKEN, ExecutorError, BROKEN),
        (1, b"", "", ExecutorError, "it failed at its start"),
    ],
)
def test_one_that_is_killed_is_told_from_one_that_is_at_fault(
    tmp_path, monkeypatch, status, told, logged, kind, reason
):
    with pytest.raises(ExecutorError, match=reason) as raised:
        start(tmp_path, monkeypatch, status, told, logged)
    assert type(raised.value) is kind
