"""The logs of a worker's tries stay on the worker until a scheduler has taken them."""

import pytest

from asynsched.protocol.worker_messages import Ticket
from asynsched.worker.logs import LogSender

PATH = "attempt=1.log"


class Taking:
    """Schedulers that take at most this many bytes of a log."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = b""

    async def send_log(self, _: Ticket, start: int, data: bytes) -> int:
        self.taken = (self.taken[:start] + data)[: self._most]
        return len(self.taken)


@pytest.mark.parametrize(("most", "stays"), [(0, True), (4, True), (8, False)])
async def test_a_log_leaves_a_worker_once_schedulers_have_all_of_it_or_do_not_want_it(tmp_path, most, stays):
    file, schedulers = tmp_path / PATH, Taking(most)
    file.write_bytes(b"old\n" + b"one\ntwo\n")
    sender = LogSender(schedulers, Ticket("one", "secret", ()), tmp_path, PATH, start=4)
    await sender.send()
    assert schedulers.taken == b"one\ntwo\n"[:most]
    assert sender.remove(is_wanted=True) == (file if stays else None)
    assert file.exists() == stays
    assert sender.remove(is_wanted=False) is None
    assert not file.exists()


def test_a_log_whose_folder_is_something_else_is_left_alone(tmp_path):
    (tmp_path / "run").write_text("by a task")
    sender = LogSender(Taking(0), Ticket("one", "secret", ()), tmp_path, f"run/{PATH}", start=0)
    assert sender.remove(is_wanted=True) is None
    assert (tmp_path / "run").read_text() == "by a task"
