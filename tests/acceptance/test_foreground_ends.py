"""An interrupted or killed `asynsched dags test` ends its task, and all processes that the task has started."""

import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.up import Site

DAG_FILE = """
    import os, signal, subprocess, time
    from pathlib import Path
    from asynsched import DAG, BaseOperator, Variable, task

    def told(what):
        Path(os.environ["FOLDER"], what).touch()

    class Waits(BaseOperator):
        def __init__(self, *, does, **kwargs):
            super().__init__(**kwargs)
            self.does = does

        def execute(self, context):
            if self.does == "ignores":
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: told("asked"))
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            try:
                told("begun")
                while True:
                    time.sleep(0.01)
            except BaseException:
                told(f"cleaned {Variable.get('v')}")
                if self.does == "cleans":
                    raise

        def on_kill(self):
            told("on_kill")

    for does in ("cleans", "goes_on", "ignores"):
        with DAG(does):

            @task(trigger_rule="all_done")
            def follows():
                told("followed")

            Waits(task_id="waits", does=does, retries=2, retry_delay=0) >> follows()
"""
HELD_UP = """
    import sys, time
    from pathlib import Path

    if "asynsched.foreground.process" in sys.orig_argv:
        folder = Path(__file__).parent.parent
        (folder / "held_up").touch()
        while not (folder / "gate").exists():
            time.sleep(0.01)
"""
LONGER_THAN_ANY_TEST = "600"


@dataclass
class Command:
    """`asynsched dags test`, in a process group of its own, as a shell starts it."""

    process: "subprocess.Popen[str]"

    def alone(self, number: int) -> None:
        self.process.send_signal(number)

    def with_its_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def site(tmp_path) -> Iterator[Site]:
    site = Site(tmp_path)
    site.env |= {"FOLDER": str(tmp_path), "ASYNSCHED_LEASE__KILL_TIME": LONGER_THAN_ANY_TEST}
    site.write("ends.py", DAG_FILE)
    site.run("variables", "set", "v", "up")
    yield site
    site.end_everything()


def told(site: Site) -> set[str]:
    """Return the marks that the tasks have left."""
    return {path.name for path in site.root.iterdir() if path.is_file() and not path.suffix}


def _as_from_a_terminal() -> None:
    """Restore the default action of these signals: `nohup`, and shells without a terminal, have them ignored by all."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def in_foreground(site: Site, dag_id: str, *, until: str = "begun") -> Iterator[Command]:
    """Test a DAG; by default, its first task has begun."""
    with subprocess.Popen(
        site.command("dags", "test", dag_id), cwd=site.root, env=site.environment, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_as_from_a_terminal,
    ) as process:  # fmt: skip
        try:
            site.until(lambda: until in told(site), until)
            yield Command(process)
        finally:
            site.end_everything()


@pytest.mark.parametrize("dag_id", ["cleans", "ignores"])
@pytest.mark.parametrize(
    ("send", "number"), [("alone", signal.SIGKILL), ("alone", signal.SIGHUP), ("with_its_group", signal.SIGQUIT)]
)
def test_a_task_does_not_outlive_the_command_that_tests_it(site, dag_id, send, number):
    with in_foreground(site, dag_id) as command:
        getattr(command, send)(number)
        site.until(lambda: not site.processes(), "nothing is left")
        assert command.end()[0] == -number
    assert "followed" not in told(site)


@pytest.mark.parametrize("which", ["the guard", "the run"])
def test_a_run_whose_process_is_killed_ends_and_the_command_says_so(site, which):
    with in_foreground(site, "ignores") as command:
        [guard] = psutil.Process(command.process.pid).children()
        [run] = guard.children()
        (guard if which == "the guard" else run).kill()
        assert command.process.wait(30) == 1
        site.until(lambda: not run.is_running(), "the run has ended")
        if which == "the run":
            site.assert_nothing_left()
        site.end_everything()
        _, out, err = command.end()
    assert out == ""
    assert re.search(r"Error: ends.py: the process ended with (-9|137) before the run did.\n$", err)


@pytest.mark.parametrize("send", [Command.alone, Command.with_its_group])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("dag_id", "ways"), [("cleans", {"on_kill"}), ("goes_on", set())])
def test_an_interrupted_task_cleans_up_and_nothing_follows_it(site, send, number, code, dag_id, ways):
    with in_foreground(site, dag_id) as command:
        send(command, number)
        ended, out, err = command.end()
        site.assert_nothing_left()
    assert (ended, out) == (code, "")
    assert "Traceback" not in err
    assert err.endswith("Error: Interrupted.\n") == (number == signal.SIGINT)
    assert told(site) == {"begun", "cleaned up", *ways}


@pytest.mark.parametrize("send", [Command.alone, Command.with_its_group])
def test_a_task_that_ignores_an_interruption_is_killed_after_its_time(site, send):
    site.env["ASYNSCHED_LEASE__KILL_TIME"] = "0.2"
    with in_foreground(site, "ignores") as command:
        send(command, signal.SIGINT)
        code, out, err = command.end()
        site.assert_nothing_left()
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert told(site) == {"begun", "asked"}


@pytest.mark.parametrize("send", [Command.alone, Command.with_its_group])
def test_a_second_interruption_kills_a_task_that_ignores_the_first(site, send):
    with in_foreground(site, "ignores") as command:
        send(command, signal.SIGINT)
        site.until(lambda: "asked" in told(site), "the task was asked to end")
        send(command, signal.SIGINT)
        code, out, err = command.end()
        site.assert_nothing_left()
    assert (code, out) == (130, "")
    assert "Waiting for the run to end. Ctrl-C kills it.\nError: Interrupted.\n" in err


@pytest.fixture
def held_up(site) -> Site:
    """Return the site; the process of a run is held up there before it has imported anything, until its gate exists."""
    start = Path(site.root, "python", "sitecustomize.py")
    start.parent.mkdir()
    start.write_text(textwrap.dedent(HELD_UP))
    site.env["PYTHONPATH"] = str(start.parent)
    return site


@pytest.mark.parametrize("send", [Command.alone, Command.with_its_group])
def test_an_early_interruption_runs_nothing_and_shows_no_traceback(held_up, send):
    with in_foreground(held_up, "cleans", until="held_up") as command:
        send(command, signal.SIGINT)
        (held_up.root / "gate").touch()
        code, out, err = command.end()
        held_up.assert_nothing_left()
    assert (code, out) == (130, "")
    assert err.endswith("dags.\nWaiting for the run to end. Ctrl-C kills it.\nError: Interrupted.\n")
    assert told(held_up) == {"held_up", "gate"}


def test_what_ctrl_c_does_to_a_run_that_is_not_ready_is_left_to_the_command(held_up):
    with in_foreground(held_up, "cleans", until="held_up") as command:
        [run] = psutil.Process(command.process.pid).children()
        run.send_signal(signal.SIGINT)
        (held_up.root / "gate").touch()
        held_up.until(lambda: "begun" in told(held_up), "the task has begun")
        command.alone(signal.SIGINT)
        code, _, err = command.end()
    assert code == 130
    assert "Traceback" not in err
