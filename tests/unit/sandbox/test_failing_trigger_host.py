"""A host of triggers that cannot go on, because of an error that is not its triggers'."""

import asyncio
from typing import Any

import msgspec
import pytest

from sandbox.trigger_host import TriggerRunner


class Link:
    """Answers a request for work with something else."""

    async def ask(self, _operation: str, _arguments: dict[str, Any]) -> Any:
        return {"session": 1}


def test_a_failing_host_of_triggers_ends_with_its_own_error():
    with pytest.raises(msgspec.ValidationError, match="session"):
        asyncio.run(TriggerRunner(Link()).serve())  # type: ignore[arg-type]
