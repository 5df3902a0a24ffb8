"""The DAG, run and supervisor of a task that is run alone."""

import pytest

from asynsched import DAG, Param
from asynsched.authoring.supervisor import set_supervisor
from asynsched.foreground.supervisor import MemorySupervisor
from tests.unit.authoring.one_task import DATE


@pytest.fixture
def supervisor():
    memory = MemorySupervisor({"plain": "text", "data": '{"a": [1]}'}, {"db": {"host": "h", "password": "p"}})
    set_supervisor(memory)
    yield memory
    set_supervisor(None)


@pytest.fixture
def dag():
    return DAG("d", start_date=DATE, params={"n": Param(1, type="integer"), "free": "x"})
