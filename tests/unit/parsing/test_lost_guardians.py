"""Guardians that are gone before they have said a word."""

import asyncio
import tempfile

import pytest

from asynsched.parsing.processes.parse_server import Guardian, GuardianLost, ServerProcess


@pytest.mark.parametrize(("is_ended", "said"), [(False, "no room"), (True, "")])
async def test_a_guardian_is_lost_with_the_last_words_of_its_server_or_without_where_that_was_ended(is_ended, said):
    with tempfile.TemporaryFile() as errors:
        errors.write(b"no room\n")
        if is_ended:
            errors.close()
        reader = asyncio.StreamReader()
        reader.feed_eof()
        guardian = Guardian(ServerProcess(None, None, errors, {}), reader, None)
        with pytest.raises(GuardianLost, match=f"^{said}$"):
            await guardian.greet()
