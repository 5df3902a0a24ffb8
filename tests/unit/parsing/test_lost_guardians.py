"""Guardians that are gone before their first message, and those that are no longer needed."""

import asyncio
import tempfile

import anyio
import anyio.lowlevel
import pytest

from asynsched.parsing.processes.sandbox_parser import Guardian, GuardianLost, ParseServer, ServerProcess, setup_of
from asynsched.settings import Settings


@pytest.mark.parametrize(("is_ended", "said"), [(False, "no room"), (True, "")])
async def test_a_lost_guardian_names_the_last_words_of_its_server(is_ended, said):
    with tempfile.TemporaryFile() as errors:
        errors.write(b"no room\n")
        if is_ended:
            errors.close()
        reader = asyncio.StreamReader()
        reader.feed_eof()
        guardian = Guardian(ServerProcess(None, None, errors, {}), reader, None)
        with pytest.raises(GuardianLost, match=f"^{said}$"):
            await guardian.greet()


class OldServer:
    """A server with one idle guardian that takes a while to end."""

    n_busy = 0

    def __init__(self) -> None:
        self.ended = []
        self.is_asked = anyio.Event()

    async def end_guardian(self):
        self.is_asked.set()
        await anyio.lowlevel.checkpoint()
        self.ended.append("guardian")

    def end(self):
        self.ended.append("server")


async def test_a_replaced_server_ends_though_the_parse_is_cancelled(tmp_path):
    server, old = ParseServer(setup_of(Settings(dags_folder=str(tmp_path), home=str(tmp_path)))), OldServer()
    idle = Guardian(old, None, None)
    idle.end = old.end_guardian
    server._server, server._idle = old, [idle]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server._retire, old)
        await old.is_asked.wait()
        tasks.cancel_scope.cancel()
    assert old.ended == ["guardian", "server"]
