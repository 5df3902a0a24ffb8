"""The verdict on a campaign finds what is wrong: each test plants one thing that the rules do not allow."""

import json
from collections.abc import Callable

import pytest

from tests.faults.real.ledger import Ledger, LedgerReader, TaskInstance
from tests.faults.real.verdict import Stored, StoredTask, problems
from tests.faults.real.workload import N_RUNS, SHAPES, Wave

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
    """A function that returns what is wrong with a story."""

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
