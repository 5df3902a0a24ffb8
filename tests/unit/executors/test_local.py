"""What the LocalExecutor says to a keeper that it could not reach for a while."""

from types import SimpleNamespace
from typing import Any, cast

from asynsched.executors.local import LocalExecutor
from asynsched.protocol.messages import Inventory, Kill, Started
from asynsched.settings import Settings
from tests.support.runs import NOON


async def test_a_kill_without_a_connection_is_sent_once_over_the_next_one(tmp_path):
    context = SimpleNamespace(settings=Settings(), home=tmp_path, scheduler_id="me", report=lambda _: None)
    executor, said = LocalExecutor(cast("Any", context)), []
    held = Inventory(running=(Started("t", NOON, 1),), starting=())
    executor._hold(held)
    await executor.kill("t", "it was marked")
    executor._connection = cast("Any", SimpleNamespace(is_open=True, send=said.append))
    executor._settle(held)
    assert said == [Kill("t", "it was marked", grace=executor._kill_time)]
