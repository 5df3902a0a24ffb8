"""The work of a try besides its task: each function that it is the first to run costs copies of memory pages."""

import os
import socket
import sys
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import asynsched
import sandbox
from asynsched import DAG, task
from asynsched.authoring.supervisor import set_supervisor
from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import CodeVersion, Launch, RunContext
from sandbox.loading import LoadedFile
from sandbox.run import SchedulerLink, run_launch

OURS = tuple(f"{Path(package.__path__[0])}/" for package in (asynsched, sandbox))
"""Other calls by Python's own library differ by its version."""


def test_an_empty_task_runs_few_functions_and_makes_only_what_it_uses(monkeypatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())  # a try leaves its process as it is
    with DAG("d", schedule=None) as dag:

        @task
        def nothing():
            return None

        nothing()
    run_once(dag)  # the keeper does first-time work before it forks
    with counting_calls() as calls:
        assert run_once(dag).state == "success"
    assert not [call for call in calls if "/pendulum/" in call[0]], "an instant that is not used"
    assert not [call for call in calls if "importlib" in call[0]], "an import within a function"
    own = Counter({call: n for call, n in calls.items() if call[0].startswith(OURS)})
    assert 0 < own.total() <= 106
    assert len(own) <= 78


def run_once(dag: DAG):
    instant = datetime(2024, 1, 1, tzinfo=UTC)
    run = RunContext(dag.dag_id, "r", "manual", instant, instant, instant, instant)
    launch = Launch("0" * 32, "nothing", -1, 1, 0, run, CodeVersion("", ""), "")
    keeper, ours = socket.socketpair()
    with keeper, ours:
        keeper.sendall(encode_frame(launch))
        link = SchedulerLink(ours)
        try:
            return run_launch(link.receive_launch(), link, LoadedFile({dag.dag_id: dag}))
        finally:
            set_supervisor(None)


@contextmanager
def counting_calls():
    """Count calls of Python functions, by their file and name."""
    calls: Counter[tuple[str, str]] = Counter()

    def take_note(frame, event, _argument):
        if event == "call":
            calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    sys.setprofile(take_note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
