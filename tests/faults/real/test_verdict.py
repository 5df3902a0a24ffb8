"""The verdict on a campaign finds errors: each test plants one thing that the rules do not allow."""

import json
import random
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.faults.real import faults
from tests.faults.real import verdict as judging
from tests.faults.real.faults import ORPHAN, RESTART, Faults, Tally
from tests.faults.real.ledger import Ledger, LedgerReader, TaskInstance
from tests.faults.real.processes import Victim, read_stat
from tests.faults.real.serving import Served
from tests.faults.real.verdict import Stored, StoredTask, left_behind, problems, too_little, wrong_edit
from tests.faults.real.workload import N_RUNS, SHAPES, Wave
from tests.support.up import MARK, Site

RUNS = [f"run-{number}" for number in range(N_RUNS)]


def line(kind: str, ti: TaskInstance, at: float, **fields) -> str:
    return json.dumps({"kind": kind, "ti": list(ti), "at": at, "try": 1, "pid": 7, "part": "body"} | fields)


class Story:
    """A campaign in which all went well, to be spoiled."""

    def __init__(self) -> None:
        self.runs = {(f"{shape}_1", run_id): state for shape, (state, _) in SHAPES.items() for run_id in RUNS}
        self.tasks: list[StoredTask] = []
        self.lines: list[str] = []
        at = 0.0
        for dag_id, run_id in self.runs:
            for task_id, expected in SHAPES[dag_id.removesuffix("_1")][1].items():
                for index in range(expected.n_mapped) if expected.n_mapped >= 0 else [-1]:
                    ti = TaskInstance(dag_id, run_id, task_id, index)
                    self.tasks.append(StoredTask(ti, expected.state, int(expected.has_body), "", ()))
                    if expected.has_body:
                        at += 1
                        how = "ok" if expected.state == "success" else "raised"
                        self.lines += [line("start", ti, at, pool=None), line("end", ti, at + 0.5, how=how)]
                    if expected.state == "failed":
                        self.lines.append(line("callback", ti, at))

    def task(self, task_id: str) -> int:
        """Return the place of the first instance of a task."""
        return next(place for place, task in enumerate(self.tasks) if task.ti.task_id == task_id)

    def change(self, task_id: str, **changes) -> None:
        place = self.task(task_id)
        self.tasks[place] = self.tasks[place]._replace(**changes)

    def drop_lines(self, task_id: str, *kinds: str) -> None:
        ti = list(self.tasks[self.task(task_id)].ti)
        self.lines = [
            text for text in self.lines if json.loads(text)["ti"] != ti or json.loads(text)["kind"] not in kinds
        ]

    def add(self, task_id: str, kind: str, at: float, **fields) -> None:
        self.lines.append(line(kind, self.tasks[self.task(task_id)].ti, at, **fields))


@pytest.fixture
def verdict(tmp_path) -> Callable[[Story], list[str]]:
    """A function that returns the errors in a story."""

    def judge(story: Story) -> list[str]:
        (tmp_path / "ledger").write_text("".join(f"{text}\n" for text in story.lines))
        ledger: Ledger = LedgerReader(tmp_path / "ledger").read()
        return problems(Stored(story.runs, story.tasks), ledger, [Wave(1)])

    return judge


def lose_a_run(story: Story) -> None:
    run = ("chain_1", RUNS[0])
    del story.runs[run]
    story.tasks = [task for task in story.tasks if task.ti[:2] != run]
    story.lines = [text for text in story.lines if json.loads(text)["ti"][:2] != list(run)]


def leave_a_run(story: Story) -> None:
    story.runs["fan_1", RUNS[1]] = "running"


def leave_a_task(story: Story) -> None:
    story.change("transform", state="up_for_retry")


def lose_a_mapped_task(story: Story) -> None:
    story.drop_lines("square", "start", "end")
    del story.tasks[story.task("square")]


def lose_a_try(story: Story) -> None:
    story.change("load", try_number=3, earlier_tries=(1,))


def succeed_without_running(story: Story) -> None:
    story.drop_lines("joins", "start", "end")


def succeed_after_a_kill(story: Story) -> None:
    story.drop_lines("joins", "end")


def run_again_after_success(story: Story) -> None:
    story.add("load", "start", 900, **{"try": 2})


def run_what_is_skipped(story: Story) -> None:
    story.add("avoided", "start", 900)


def run_what_is_not_there(story: Story) -> None:
    story.lines.append(line("start", TaskInstance("chain_1", RUNS[0], "ghost", -1), 900))


def run_tries_out_of_order(story: Story) -> None:
    story.change("numbers", try_number=1)
    story.drop_lines("numbers", "start", "end")
    for try_number, at in ((2, 900), (1, 901)):
        story.add("numbers", "start", at, **{"try": try_number})
        story.add("numbers", "end", at + 0.1, how="ok")


def run_twice_at_once(story: Story) -> None:
    for pid, at in ((21, 900.0), (22, 900.1)):
        story.add("extract", "start", at, pid=pid)
    for pid, at in ((21, 900.2), (22, 900.3)):
        story.add("extract", "end", at, pid=pid, how="ok")


def find_a_lock_taken(story: Story) -> None:
    story.add("extract", "overlap", 0)


def find_the_slots_taken(story: Story) -> None:
    story.add("wide", "overcommitted", 0)


def fill_a_pool_beyond_its_slots(story: Story) -> None:
    for pid, (task_id, slots) in enumerate({"thin": 1, "wide": 2}.items()):
        story.drop_lines(task_id, "start", "end")
        story.add(task_id, "start", 900, pid=pid, pool="narrow", slots=slots)
        story.add(task_id, "end", 901, pid=pid, how="ok")


def forget_a_callback(story: Story) -> None:
    story.drop_lines("breaks", "callback")


PLANTED = {
    lose_a_run: "has 3 runs, not 4",
    leave_a_run: "is running, not success",
    leave_a_task: "up_for_retry",
    lose_a_mapped_task: "square",
    lose_a_try: "its earlier tries are (1,)",
    succeed_without_running: "never ran",
    succeed_after_a_kill: "its last execution was try 1, killed",
    run_again_after_success: "its last execution was try 2",
    run_what_is_skipped: "is skipped, and ran",
    run_what_is_not_there: "is not in the database",
    run_tries_out_of_order: "ran in the order [2, 1]",
    run_twice_at_once: "overlapping executions",
    find_a_lock_taken: "overlap: chain_1",
    find_the_slots_taken: "overcommitted: narrow_1",
    fill_a_pool_beyond_its_slots: "pool narrow has 3 of 2 slots taken",
    forget_a_callback: "its callback was never called",
}


def test_nothing_is_wrong_where_all_went_well(verdict):
    assert verdict(Story()) == []


@pytest.mark.parametrize("spoil", PLANTED, ids=lambda spoil: spoil.__name__)
def test_what_is_wrong_is_found(verdict, spoil):
    story = Story()
    spoil(story)
    found = verdict(story)
    assert any(PLANTED[spoil] in problem for problem in found), found


def test_an_edit_that_is_not_known_is_found():
    assert wrong_edit(["edit-7"], 7) == []
    for tags in (["edit-6"], None, []):
        assert "the last edit of edited_1.py is not known" in wrong_edit(tags, 7)[0]


def test_a_campaign_that_has_done_too_little_shows_nothing():
    kills = Counter({("SIGKILL", "task"): 5, ("SIGTERM", "task"): 5})
    assert too_little(Tally(kills), has_server=False) == []
    assert too_little(Tally(kills, database=Counter({RESTART: 1})), has_server=True) == []
    assert too_little(Tally(kills), has_server=True) == ["PostgreSQL was never restarted"]
    kills["SIGTERM", "parse"] += 1
    assert too_little(Tally(kills), has_server=False) == ["5 of 11 kills were SIGKILL"]


def test_what_is_left_behind_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "LEAVE_SECONDS", 0.0)
    site, temporary = Site(tmp_path / "site"), tmp_path / "tmp"
    for folder in (temporary, site.home / "attempts", site.home / "tmp"):
        folder.mkdir(parents=True)
    journal = site.home / "attempts" / "journal"
    journal.touch()
    assert list(left_behind([site], temporary)) == []
    journal.write_text("a try that is not forgotten")
    [found] = left_behind([site], temporary)
    assert found.endswith(f"file left: {journal}")
    journal.write_text("")
    for left in (site.home / "attempts" / "journal.new", site.home / "tmp" / "scratch", temporary / "leaked"):
        left.touch()
        [found] = left_behind([site], temporary)
        assert found.endswith(f"file left: {left}")
        left.unlink()
    with socket.socket(socket.AF_UNIX) as bell:
        bell.bind(str(site.home / "bell.sock"))
        assert {found.partition(":")[0] for found in left_behind([site], temporary)} == {"socket left"}
        (site.home / "bell.sock").unlink()
        [found] = left_behind([site], temporary)
        assert str(site.home) in found, "the kernel has it still"
    with subprocess.Popen(["sleep", "1000"], env={MARK: site.mark, "PATH": "/usr/bin:/bin"}) as process:
        [found] = left_behind([site], temporary)
        assert f"pid={process.pid}" in found
        process.kill()


@pytest.mark.parametrize(
    ("code", "was_asked", "words", "is_fine"),
    [
        (-9, False, "", True),
        (0, True, "scheduler.started", True),
        (-15, True, "", True),
        (1, True, "scheduler.started a second signal", True),
        (1, False, "scheduler.started lease.lost", True),
        (1, False, "Error: the database x cannot be reached", True),
        (1, False, "scheduler.started Error: the database x cannot be reached", False),
        (0, False, "scheduler.started", False),
        (1, False, "Traceback", False),
        (1, True, "scheduler.started Traceback", False),
        (-11, True, "scheduler.started", False),
        (-15, False, "scheduler.started", False),
    ],
)
def test_an_end_of_a_scheduler_that_nobody_has_caused_is_found(tmp_path, code, was_asked, words, is_fine):
    site = Site(tmp_path)
    (tmp_path / f"up-{site.home_name}.log").write_text(words)
    served = Served(site, random.Random(1), 1.0, process=SimpleNamespace(pid=7))
    if was_asked:
        served.will_stop()
    served._ended(code)
    assert [words in complaint for complaint in served.complaints] == ([] if is_fine else [True])


def test_a_scheduler_that_does_not_stop_is_found(tmp_path):
    site = Site(tmp_path)
    (tmp_path / f"up-{site.home_name}.log").write_text("scheduler.started")
    killed = []

    def wait(timeout=None):
        if not killed:
            raise subprocess.TimeoutExpired("up", timeout)
        return -9

    process = SimpleNamespace(pid=7, send_signal=print, wait=wait, kill=lambda: killed.append(True))
    served = Served(site, random.Random(1), 1.0, process=process)
    served.stop()
    [complaint] = served.complaints
    assert complaint.startswith("a scheduler did not stop within 60 s")


def test_a_keeper_is_not_orphaned_if_its_scheduler_died_before_the_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "LINGER_SECONDS", 0.0)
    (tmp_path / "locks").mkdir()
    with subprocess.Popen(["true"]) as process:
        gone = Victim(read_stat(process.pid), "scheduler")
    served = SimpleNamespace(site=SimpleNamespace(home_name="home"), will_rest=lambda: pytest.fail("nobody was killed"))
    striking = Faults(tmp_path, [], LedgerReader(tmp_path / "ledger"), random.Random(1), outlast=1.0)
    monkeypatch.setattr(striking, "_pairs", lambda: [(served, gone, gone)])
    striking.strike(ORPHAN)
    assert striking.tally == Tally()
