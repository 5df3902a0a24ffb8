"""Whole runs end as Airflow's did: trigger rules, setups, branches, the run before, and forced states."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from asynsched.protocol.messages import BranchDecision, Ended, ShortCircuitDecision
from asynsched.scheduling.evaluation.run import ActiveTask
from asynsched.scheduling.loading import past_of
from asynsched.states import DagRunState, TaskInstanceState
from asynsched.store.runs.task_instances import StoredPast
from tests.support.runs import NOON, evaluation, run_of, task

CASES = json.loads((Path(__file__).parent / "data" / "dagrun_states.json").read_text())["cases"]


def serialized(dag):
    downstream = {found["id"]: [] for found in dag["tasks"]}
    for before, after in dag["edges"]:
        downstream[before].append(after)
    made = {
        found["id"]: task(
            found["id"],
            *downstream[found["id"]],
            trigger_rule=found.get("rule") or ("all_done_setup_success" if found.get("teardown") else "all_success"),
            retries=found.get("retries", 0),
            is_empty=found.get("kind") == "empty",
            is_branch=found.get("kind") == "branch",
            is_short_circuit=found.get("kind") == "short_circuit",
            is_setup=found.get("setup", False),
            is_teardown=found.get("teardown", False),
            on_failure_fail_dagrun=found.get("on_failure_fail_dagrun", False),
            depends_on_past=found.get("depends_on_past", False) or found.get("wait_for_downstream", False),
            wait_for_downstream=found.get("wait_for_downstream", False),
            wait_for_past_depends_before_skipping=found.get("wait_for_past_depends_before_skipping", False),
        )
        for found in dag["tasks"]
    }
    return in_topological_order(made)


def in_topological_order(tasks):
    waiting = {task_id: sum(task_id in found.downstream_task_ids for found in tasks.values()) for task_id in tasks}
    ordered = []
    while waiting:
        ready = next(task_id for task_id, n in waiting.items() if n == 0)
        del waiting[ready]
        ordered.append(tasks[ready])
        for after in tasks[ready].downstream_task_ids:
            waiting[after] -= 1
    return ordered


class Driver:
    """Drives the runs of one case: in each round, all tasks that may run start, and end together."""

    def __init__(self, case):
        self.dag = case["dag"]
        self.described = {found["id"]: found for found in self.dag["tasks"]}
        self.now = NOON
        self.before = None

    def drive(self, described_run):
        engine = evaluation()
        options = {"catchup": self.dag.get("catchup", False), "fail_fast": self.dag.get("fail_fast", False)}
        run = run_of(serialized(self.dag), run_after=self.now, **options)
        run.logical_date = self.now
        if self.before is not None:
            states = {task_id: [found[-1].state] for task_id, found in self.before.instances.items()}
            before = StoredPast(self.before.key, self.before.logical_date, states)
            run.key_before, run.past = self.before.key, past_of(run, before)
        self.start(engine, run, described_run.get("forced", {}))
        for _ in range(100):
            engine.grant(self.now)
            granted = [found for found in run.all_instances() if found.token and found.state == "queued"]
            if not granted and engine.next_timer is None:
                break
            for found in granted:
                engine.try_ended(self.end_of(found, described_run), self.now)
            self.now += timedelta(days=1)
            engine.time_passed(self.now)
        self.now += timedelta(days=1)
        self.before = run
        states = {task_id: found[-1].state for task_id, found in run.instances.items()}
        return {
            "run_state": str(run.state),
            "tasks": {task_id: state and str(state) for task_id, state in states.items()},
            "tries": {
                task_id: found[-1].try_number for task_id, found in run.instances.items() if found[-1].try_number > 1
            },
        }

    def start(self, engine, run, forced):
        if not forced:
            engine.start_run(run, self.now)
            return
        run.state = DagRunState.RUNNING
        engine.resume_run(run, [self.forced(run, found, forced) for found in run.structure.dag.tasks], self.now)

    @staticmethod
    def forced(run, found, forced):
        state = forced.get(found.task_id)
        return ActiveTask(run, found, state=state and TaskInstanceState(state), max_tries=found.retries)

    def end_of(self, found, described_run):
        outcome = described_run.get("outcomes", {}).get(found.task_id, "success")
        if isinstance(outcome, list):
            outcome = outcome[min(found.try_number, len(outcome)) - 1]
        decision = None
        if outcome == "success" and found.task.is_branch:
            decision = BranchDecision(tuple(described_run["choose"][found.task_id]))
        elif outcome == "success" and found.task.is_short_circuit and not described_run["condition"][found.task_id]:
            decision = ShortCircuitDecision(self.described[found.task_id].get("ignore_downstream_trigger_rules", True))
        state, retry = ("failed", False) if outcome == "failed_no_retry" else (outcome, True)
        return Ended(found.token, state, self.now, self.now, retry=retry, decision=decision)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_runs_end_as_airflows_do(case):
    driver = Driver(case)
    found = [driver.drive(described_run) for described_run in case["runs"]]
    assert found in [case["expect"], *case.get("alternatives", [])]
