"""Tasks ask people, who answer by a command, also while no scheduler serves."""

import pytest

from asynsched.store.engines.opening import open_direct
from tests.support.stored import list_audit

DATABASES = ("postgresql",)

FILE = """
    from datetime import timedelta

    from airflow.providers.standard.operators.hitl import (
        ApprovalOperator, HITLBranchOperator, HITLEntryOperator, HITLOperator,
    )
    from airflow.sdk import DAG, BaseNotifier, BaseOperator, Param, task
    from airflow.sdk.execution_time.hitl import get_hitl_detail_content_detail, upsert_hitl_detail

    class Tells(BaseNotifier):
        template_fields = ("text",)

        def __init__(self, text):
            super().__init__()
            self.text = text

        def notify(self, context):
            url = HITLOperator.generate_link_to_ui_from_context(context=context, base_url="http://here:1")
            self.log.info("%s %s", self.text, url)

    with DAG("asks", schedule=None, max_active_tasks=1):
        approve = ApprovalOperator(
            task_id="approve", subject="Ship {{ run_id }}?", body="All *good*.", notifiers=Tells("{{ task.subject }}"),
            assigned_users=[{"id": "7", "name": "anna"}, {"id": "ben", "name": "Ben B"}],
        )
        reject = ApprovalOperator(task_id="reject", subject="Delete all?")
        several = HITLOperator(task_id="several", subject="Which?", options=["x", "y", "z"], multiple=True)
        enter = HITLEntryOperator(
            task_id="enter", subject="How many?",
            params={"n": Param(type="integer", minimum=1), "note": Param("none", type="string"), "free": [1]},
        )
        late = HITLOperator(
            task_id="late", subject="Quick!", options=["a", "b"], defaults="b", params={"k": 5},
            response_timeout=timedelta(milliseconds=10),
        )
        nobody = HITLOperator(
            task_id="nobody", subject="Quick!", options=["a"], response_timeout=timedelta(milliseconds=10)
        )
        branch = HITLBranchOperator(
            task_id="branch", subject="Where to?", options=["left", "to the right"],
            options_mapping={"to the right": "right"},
        )

        @task
        def shipped(answer):
            return answer["responded_by_user"]["name"]

        @task
        def deleted(): ...

        @task
        def left(): ...

        @task
        def right(): ...

        shipped(approve.output)
        reject >> deleted()
        enter >> branch >> [left(), right()]

    with DAG("eager", schedule=None):

        class Asks(BaseOperator):
            def execute(self, context):
                from airflow.providers.standard.triggers.hitl import HITLTrigger

                upsert_hitl_detail(self.id_of(context), ["yes", "no"], "Now?")
                print("it has asked", flush=True)
                from pathlib import Path
                import os, time

                while not Path(os.environ["GATE"]).exists():
                    time.sleep(0.01)
                trigger = HITLTrigger(ti_id=self.id_of(context), options=["yes", "no"], params={})
                self.defer(trigger=trigger, method_name="answered", kwargs={"word": "so"})

            def answered(self, context, word, event):
                found = get_hitl_detail_content_detail(self.id_of(context))
                assert found.responded_at == event["responded_at"]
                return [word, event["chosen_options"], found.responded_by_user["name"]]

            def id_of(self, context):
                return context["ti"].id

        Asks(task_id="asks")
"""
WAITING = {"approve", "reject", "several", "enter"}


@pytest.fixture
def site(new_site):
    site = new_site()
    site.env |= {"LOGNAME": "carla", "GATE": str(site.root / "gate")}
    site.write("asks.py", FILE)
    return site


def awaiting(site, dag_id="asks"):
    return {found["task_id"]: found for found in site.json("tasks", "awaiting", dag_id)}


def answer(site, task_id, *args, code=0):
    finished = site.run("tasks", "answer", "asks", "r", task_id, *args, code=code)
    return finished.stdout if code == 0 else finished.stderr


def returned(site, task_id, dag_id="asks"):
    found = site.json("tasks", "xcom", dag_id, "r", task_id)
    return next(entry["value"] for entry in found if entry["key"] == "return_value")


def start(site):
    site.wait_for_dag("asks")
    site.run("dags", "trigger", "asks", "--run-id", "r")
    site.until(lambda: awaiting(site).keys() == WAITING, "every task has asked")


def test_people_answer_tasks_with_and_without_a_scheduler(site):
    with site.up() as up:
        start(site)
        shown = awaiting(site)["approve"]
        assert (shown["subject"], shown["options"], shown["default_at"]) == ("Ship r?", ["Approve", "Reject"], None)
        assert (
            "it waits for a person's answer: Ship r?; until somebody answers it"
            in site.run("why", "asks", "r", "approve").stdout
        )
        assert (
            "INFO - Ship r? http://here:1/dags/asks/runs/r/tasks/approve/required_actions?map_index=-1"
            in site.run("tasks", "logs", "asks", "r", "approve").stdout
        )
        assert "carla may not answer the task 'approve'. These may: anna, Ben B." in answer(
            site, "approve", "--option", "Approve", code=1
        )
        assert "carla answered" in answer(site, "reject", "--option", "Reject")
        assert "has an answer already, from carla: Reject." in answer(site, "reject", "--option", "Approve", code=1)
        assert "anna answered approve of r: Approve." in answer(
            site, "approve", "--option", "Approve", "--user", "anna"
        )
        ended = {"reject": "success", "deleted": "skipped", "shipped": "success", "late": "success", "nobody": "failed"}
        site.until(lambda: ended.items() <= site.task_states("asks", "r").items(), "the answered tasks have ended")
        up.kill()
    assert returned(site, "shipped") == "anna"
    late = returned(site, "late")
    assert (late["chosen_options"], late["params_input"], late["responded_by_user"]) == (["b"], {"k": 5}, None)
    assert (
        "No scheduler serves now"
        in site.run("tasks", "answer", "asks", "latest", "several", "--option", "z", "--option", "x").stderr
    )
    answer(site, "enter", "--param", "n=3", "--param", "note=12")
    assert awaiting(site).keys() == set()
    with site.up():
        site.until(lambda: awaiting(site).keys() == {"branch"}, "the scheduler goes on with the answers")
        assert returned(site, "several")["chosen_options"] == ["z", "x"]
        assert returned(site, "enter")["params_input"] == {"n": 3, "note": "12", "free": [1]}
        answer(site, "branch", "--option", "to the right")
        site.until(lambda: site.json("runs", "show", "asks", "r")["state"] == "failed", "the run has ended")
    assert returned(site, "branch") == ["right"]
    states = site.task_states("asks", "r")
    assert (states["left"], states["right"]) == ("skipped", "success")
    database = open_direct(site.database or f"sqlite:///{site.home}/asynsched.db")
    told = [(row.task_id, row.detail["user"]) for row in database.read(list_audit) if row.action == "task.answer"]
    database.close()
    assert sorted(told) == [
        ("approve", "anna"),
        ("branch", "carla"),
        ("enter", "carla"),
        ("reject", "carla"),
        ("several", "carla"),
    ]


@pytest.mark.parametrize("backend", ["sqlite"], scope="module")
def test_an_answer_that_does_not_fit_is_refused_in_one_line(site):
    with site.up():
        start(site)
        site.until(lambda: site.task_states("asks", "r")["late"] == "success", "the time is over")
        for task_id, args, message in [
            ("several", [], "Give an --option; there are: x, y, z."),
            ("several", ["--option", "q"], "'q' is not among the options: x, y, z."),
            (
                "reject",
                ["--option", "Approve", "--option", "Reject"],
                "the task takes a single one of Approve, Reject.",
            ),
            ("enter", [], "--param n: no value was given, and it has no default."),
            ("enter", ["--param", "n=0"], "--param n: 0 is less than the minimum of 1"),
            ("enter", ["--param", "n=1", "--param", "m=1"], "no param 'm': its params are free, n, note."),
            ("late", ["--option", "a"], "The task 'late' waits for no answer: it is success."),
            ("branch", ["--option", "left"], "The task 'branch' waits for no answer: it is not started yet."),
            ("entr", [], "enter"),
        ]:
            refused = answer(site, task_id, *args, code=1)
            assert message in refused
            assert (refused.startswith("Error: "), refused.count("\n")) == (True, 1)
        assert awaiting(site).keys() == WAITING


def test_an_answer_that_comes_before_the_task_waits_is_kept(site):
    with site.up():
        site.wait_for_dag("eager")
        site.run("dags", "trigger", "eager", "--run-id", "r")
        asked = ("tasks", "logs", "eager", "r", "asks")
        site.until(lambda: "it has asked" in site.run(*asked, code=None).stdout, "the task has asked")
        site.run("tasks", "answer", "eager", "r", "asks", "--option", "no")
        (site.root / "gate").touch()
        site.until(lambda: site.json("runs", "show", "eager", "r")["state"] == "success", "the task has gone on")
    assert returned(site, "asks", "eager") == ["so", ["no"], "carla"]
