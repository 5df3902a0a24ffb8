"""The execution of a task, and its result."""

import json
import logging
import os
import signal
from contextlib import nullcontext

import pytest

from asynsched import (
    DAG,
    Asset,
    AsynschedException,
    AsynschedFailException,
    AsynschedSkipException,
    BaseBranchOperator,
    BaseNotifier,
    BaseOperator,
    BaseOperatorLink,
    BashOperator,
    BranchMixIn,
    BranchPythonOperator,
    DagError,
    Metadata,
    PythonOperator,
    PythonSensor,
    ShortCircuitOperator,
    SkipMixin,
    TaskDeferred,
    TaskGroup,
    task,
)
from asynsched.authoring.exceptions import DownstreamTasksSkipped
from asynsched.authoring.running.execution import execute
from asynsched.foreground.run import run_in_foreground
from tests.unit.authoring.one_task import context_of, run


def test_branches_are_checked_and_short_circuits_reported(dag, supervisor):
    with dag:

        def choose(**context):
            return context["params"]["free"]

        branch = task.branch(choose)().operator
        stop = task.short_circuit(ignore_downstream_trigger_rules=False)(lambda: 0).override(task_id="stop")().operator
    with pytest.raises(DagError, match="branch 'choose' chose 'x': no task and no task group of DAG 'd'"):
        run(branch)
    result = run(branch, conf={"free": "stop"})
    assert (result.follow, result.short_circuit) == (("stop",), None)
    assert run(stop).short_circuit is False


def test_conditions_are_asked_from_the_inside_outwards_after_the_own_hook(dag, supervisor):
    asked = []

    def note(name, answer=True):
        return lambda context: (asked.append(name), answer)[1]

    with dag:

        @task.run_if(note("last"))
        @task.run_if(note("outer", answer=False), skip_message="not today")
        @task.skip_if(note("inner", answer=False))
        @task(pre_execute=note("own"))
        def guarded():
            asked.append("task")

        operator = guarded().operator
    with pytest.raises(AsynschedSkipException, match="not today"):
        run(operator)
    assert asked == ["own", "inner", "outer"]


class Decides(BaseOperator, BranchMixIn):
    """Runs a function with itself and the task instance."""

    def __init__(self, *, decide, **kwargs):
        super().__init__(**kwargs)
        self.decide = decide

    def execute(self, context):
        self.decide(self, context["ti"])
        return "went on"


def skips(operator, ti):
    operator.skip(ti, [operator.dag.get_task("far"), operator.dag.task_group])


def raises_the_pairs(operator, ti):
    raise DownstreamTasksSkipped(tasks=[("far", -1), "next"])


@pytest.mark.parametrize(
    ("decide", "follow", "skipped", "value"),
    [
        (skips, None, ("far",), None),
        (raises_the_pairs, None, ("far", "next"), None),
        (lambda operator, ti: operator.skip(ti, []), None, None, "went on"),
        (lambda operator, ti: operator.skip_all_except(ti, (name for name in ["next"])), ("next",), None, None),
        (lambda operator, ti: operator.do_branch({"ti": ti}, "group"), ("group.in",), None, None),
        (lambda operator, ti: operator.do_branch({"ti": ti}, None), (), None, None),
        # Nothing is left to skip: "far" is after "next".
        (lambda operator, ti: operator.do_branch({"ti": ti}, ["next", "group"]), ("next", "group.in"), None, "went on"),
    ],
)
def test_an_operator_with_a_mixin_skips_tasks_and_ends_there(dag, decide, follow, skipped, value):
    with dag:
        operator = Decides(decide=decide, task_id="decides")
        with TaskGroup("group"):
            inside = BashOperator(task_id="in", bash_command="true")
        near, far = (BashOperator(task_id=name, bash_command="true") for name in ("next", "far"))
        operator >> [near, far, inside]
        near >> far
    assert operator.is_branch
    result = run(operator)
    assert (result.follow, result.skips, result.value) == (follow, skipped, value)


def test_a_mapped_instance_decides_and_goes_on_and_bad_choices_fail(dag):
    with dag:
        operator = Decides(decide=lambda operator, ti: operator.skip(ti, operator.downstream_list), task_id="decides")
        operator >> BashOperator(task_id="next", bash_command="true")
        bad = Decides(decide=lambda operator, ti: operator.do_branch({"ti": ti}, ["no"]), task_id="bad")
    result = run(operator, map_index=1)
    assert (result.skips, result.value) == (("next",), "went on")
    with pytest.raises(DagError, match="branch 'bad' chose 'no'"):
        run(bad)


@pytest.mark.parametrize(
    ("chosen", "value"), [(lambda: {"next": 1}, {"next": 1}), (lambda: (name for name in ["next"]), ["next"])]
)
def test_a_branch_may_return_any_iterable_of_ids(dag, chosen, value):
    with dag:
        branch = BranchPythonOperator(task_id="branch", python_callable=chosen)
        branch >> [BashOperator(task_id=name, bash_command="true") for name in ("next", "other")]
    result = run(branch)
    assert (result.follow, result.value) == (("next",), value)


def test_a_branch_whose_execute_is_replaced_decides_only_by_do_branch(dag):
    class Own(BaseBranchOperator):
        def execute(self, context):
            return "told"

    with dag:
        operator = Own(task_id="own")
        operator >> BashOperator(task_id="next", bash_command="true")
        short = ShortCircuitOperator(task_id="short", python_callable=bool)
    result = run(operator)
    assert (result.follow, result.value) == (None, "told")
    assert isinstance(short, SkipMixin)
    assert (short.is_short_circuit, short.is_branch) == (True, False)


def test_overridden_decisions_of_the_standard_operators_are_called(dag):
    told = []

    class Branch(BranchPythonOperator):
        def do_branch(self, context, branches_to_execute):
            told.append(branches_to_execute)
            return super().do_branch(context, [*branches_to_execute, "b"])

        def skip_all_except(self, ti, branch_task_ids):
            told.append(branch_task_ids)
            super().skip_all_except(ti, branch_task_ids)

    class Short(ShortCircuitOperator):
        def skip(self, ti, tasks):
            told.append(sorted(task.task_id for task in tasks))
            super().skip(ti, [task for task in tasks if task.task_id != "b"])

    with dag:
        branch = Branch(task_id="branch", python_callable=lambda: ["a"])
        all_of_them = Short(task_id="all", python_callable=bool)
        near = Short(task_id="near", python_callable=bool, ignore_downstream_trigger_rules=False)
        names = [BashOperator(task_id=name, bash_command="true") for name in "abcd"]
        [branch, near] >> names[0], branch >> names[1], branch >> names[3]
        all_of_them >> names[0] >> names[1] >> names[2].as_teardown()
    result = run(branch)
    assert (result.follow, result.value) == (("a", "b"), ["a"])
    assert (run(all_of_them).skips, run(near).skips) == (("a",), ("a",))
    assert told == [["a"], ["a", "b"], ["a", "b"], ["a"]]


def test_a_short_circuit_decides_by_its_condition_not_by_what_a_subclass_returns(dag):
    class Reports(ShortCircuitOperator):
        def execute(self, context):
            return not super().execute(context)

    with dag:
        yes, no = (Reports(task_id=str(answer), python_callable=lambda answer=answer: answer) for answer in (1, 0))
        [yes, no] >> BashOperator(task_id="next", bash_command="true")
    assert (run(yes).short_circuit, run(no).short_circuit) == (None, True)


class WorkLink(BaseOperatorLink):
    name = "Work"

    def get_link(self, operator, *, ti_key):
        return f"https://work.example/{ti_key.task_id}/{operator.number}"


class BrokenLink(WorkLink):
    def get_link(self, operator, *, ti_key):
        raise ValueError("no such work")


class Linked(BaseOperator):
    operator_extra_links = (BrokenLink(), WorkLink())

    def __init__(self, *, exc, **kwargs):
        super().__init__(**kwargs)
        self.exc = exc

    def execute(self, context):
        self.number = 7
        if self.exc is not None:
            raise self.exc


@pytest.mark.parametrize(
    ("exc", "has_link"),
    [
        (None, True),
        (ValueError("failed"), True),
        (AsynschedSkipException("nothing to do"), True),
        (TaskDeferred(trigger=None, method_name="resumed"), True),
        (SystemExit(1), False),
    ],
)
def test_a_try_pushes_its_links_however_it_ends(dag, supervisor, caplog, exc, has_link):
    with dag:
        operator = Linked(exc=exc, task_id="linked")
    supervisor.running_task = "linked"
    with nullcontext() if exc is None else pytest.raises(type(exc)):
        run(operator)
    wanted = {"task_ids": ["linked"], "key": "_link_WorkLink", "map_indexes": None}
    pushed = [value for _, _, value in supervisor.request("xcom_pull", **wanted)["found"]]
    assert pushed == (["https://work.example/linked/7"] if has_link else [])
    assert ("The link BrokenLink has no address: ValueError: no such work" in caplog.text) is has_link


def test_a_dict_as_return_type_means_multiple_outputs_except_of_sensors(dag):
    def make(x=1) -> dict[str, int]: ...

    with dag:
        for name in ("python", "short_circuit", "branch", "sensor", "bash"):
            getattr(task, name)(task_id=name, multiple_outputs=None)(make)()
        task(task_id="told", multiple_outputs=False)(make)()
    assert {each.task_id for each in dag.tasks if each.multiple_outputs} == {
        "python",
        "short_circuit",
        "branch",
        "bash",
    }


def test_multiple_outputs_push_each_item(dag, supervisor):
    def make() -> dict:
        return {"a": 1, "b": [2]}

    with dag:
        made = task(make)()
        show = task(lambda *x: x).override(task_id="show")(made["a"], made["b"], made["never"]).operator
    supervisor.running_task = "make"
    run(made.operator)
    supervisor.running_task = "show"
    assert run(show).value == (1, [2], None)


def test_hooks_run_around_the_task_in_order(dag):
    seen = []

    class Noisy(PythonOperator):
        def pre_execute(self, context):
            seen.append("pre_execute")

        def post_execute(self, context, result=None):
            seen.append(f"post_execute {result}")

    def broken(context):
        seen.append("on_execute")
        raise RuntimeError("ignored")

    operator = Noisy(
        task_id="t", dag=dag, python_callable=lambda: 1, on_execute_callback=[broken],
        pre_execute=lambda context: seen.append("pre"), post_execute=lambda context, result: seen.append("post"),
    )  # fmt: skip
    run(operator)
    assert seen == ["pre", "pre_execute", "on_execute", "post", "post_execute 1"]


def test_hooks_that_yield_run_to_their_end_and_need_no_result(dag):
    rows, seen = Asset("rows"), []

    def tells(name):
        def tell(context, *results):
            yield Metadata(rows, {name: len(results)})
            seen.append(name)

        return tell

    class Noisy(PythonOperator):
        def pre_execute(self, context):
            yield from tells("pre_execute")(context)

        def post_execute(self, context):
            yield from tells("post_execute")(context)

    operator = Noisy(
        task_id="t", dag=dag, python_callable=lambda: 1, on_execute_callback=[tells("on_execute")], outlets=[rows],
        pre_execute=tells("pre"), post_execute=tells("post"),
    )  # fmt: skip
    (event,) = run(operator).outlet_events
    assert seen == ["pre", "pre_execute", "on_execute", "post", "post_execute"]
    assert event["extra"] == dict.fromkeys(seen, 0) | {"post": 1}


def test_bash_sees_its_environment_and_exit_codes_decide(dag, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="asynsched")
    script = tmp_path / "script.sh"
    script.write_text("echo {{ ds }}\necho $AIRFLOW_CTX_TASK_ID $HOME\n")
    dag.template_searchpath.append(str(tmp_path))
    assert run(BashOperator(task_id="s", dag=dag, bash_command="script.sh", env={"HOME": "h"})).value == "s h"
    assert "2024-05-01" in [record.getMessage() for record in caplog.records]
    here = BashOperator(task_id="c", dag=dag, bash_command="pwd", cwd=str(tmp_path), output_processor=str.upper)
    assert run(here).value == str(tmp_path).upper()
    inherits = BashOperator(task_id="i", dag=dag, bash_command="echo $PATH$X", append_env=True, env={"X": "!"})
    assert run(inherits).value == os.environ["PATH"] + "!"
    with pytest.raises(AsynschedSkipException):
        run(BashOperator(task_id="k", dag=dag, bash_command="exit 99"))
    for code in (1, 98):
        with pytest.raises(AsynschedException, match=f"exit code {code}"):
            run(BashOperator(task_id=f"f{code}", dag=dag, bash_command=f"exit {code}", skip_on_exit_code=[97]))
    with pytest.raises(AsynschedException, match="not a folder"):
        run(BashOperator(task_id="n", dag=dag, bash_command="pwd", cwd="/nowhere"))


def test_commands_of_a_bash_operator_s_hook_end_with_its_task(dag):
    hooks = []

    class Own(BashOperator):
        def execute(self, context):
            hooks.append(self.subprocess_hook)
            return hooks[-1].run_command(["bash", "-c", self.bash_command], env=self.get_env(context)).output

    assert run(Own(task_id="own", dag=dag, bash_command="echo $AIRFLOW_CTX_TASK_ID")).value == "own"
    Own(task_id="slow", dag=dag, bash_command="exec sleep 600", execution_timeout=0.5)
    assert "execution_timeout of 0.5 s is over" in run_in_foreground(dag).task("slow").reason
    with hooks[-1].sub_process as process:
        assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("end", ["true", "exit 3"])
def test_people_see_the_command_that_a_function_returned(dag, end):
    with dag:
        operator = task.bash(lambda: f"echo {{{{ params.free }}}}; {end}").override(task_id="t")().operator
    context = context_of(operator)
    with nullcontext() if end == "true" else pytest.raises(AsynschedException, match="exit code 3"):
        execute(operator, context)
    assert json.loads(context["ti"].rendered_fields)["bash_command"] == f"echo x; {end}"


def test_a_timeout_ends_the_command_too(dag, tmp_path):
    mark = tmp_path / "pid"
    slow = BashOperator(
        task_id="slow", dag=dag, bash_command=f"echo $$ > {mark}; exec sleep 600", execution_timeout=0.5
    )
    run_of_it = run_in_foreground(slow.dag)
    assert "execution_timeout of 0.5 s is over" in run_of_it.task("slow").reason
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


class Variable:
    """An object without template_fields, of which an operator renders some attributes."""

    def __init__(self, value):
        self.value = value


class Pod(BaseOperator):
    template_fields = ("variables", "made")

    def __init__(self, *, variables, made, **kwargs):
        super().__init__(**kwargs)
        self.variables = variables
        self.made = made

    def _render_nested_template_fields(self, content, context, jinja_env, seen_oids):
        if isinstance(content, Variable) and id(content) not in seen_oids:
            seen_oids.add(id(content))
            self._do_render_template_fields(content, ("value",), context, jinja_env, seen_oids)
        else:
            super()._render_nested_template_fields(content, context, jinja_env, seen_oids)

    def _do_render_template_fields(self, parent, template_fields, context, jinja_env, seen_oids):
        if parent is self and isinstance(self.variables, dict):
            self.variables = [Variable(f"{name}={value}") for name, value in self.variables.items()]
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)

    def execute(self, context):
        return [getattr(one, "value", None) or one.text for one in self.variables] + [self.made]


class Named:
    template_fields = ("text",)
    text = "{{ ds_nodash }}"


def test_operators_render_objects_in_their_fields_and_call_functions(dag):
    def make(context, jinja_env):
        return jinja_env.from_string("of {{ ds }}").render(ds=context["ds"])

    pod = Pod(variables=[Variable("{{ ds }}"), Named()], made=make, task_id="pod", dag=dag)
    assert run(pod).value == ["2024-05-01", "20240501", "of 2024-05-01"]


def test_operators_prepare_their_fields_before_these_are_rendered(dag):
    pod = Pod(variables={"{{ ds_nodash }}": "{{ ds }}"}, made=None, task_id="pod", dag=dag)
    assert run(pod).value == ["20240501=2024-05-01", None]


def test_failures_retry_fail_or_end_at_once_with_their_callbacks(dag):
    called = []

    class Notify(BaseNotifier):
        template_fields = ("text",)

        def __init__(self, text):
            self.text = text

        def notify(self, context):
            called.append(self.text)

    def give_up():
        raise AsynschedFailException("enough")

    tries = []

    def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("again")

    says = {f"on_{event}_callback": Notify("{{ ti.task_id }} " + event) for event in ("retry", "success", "failure")}
    with dag:
        PythonOperator(task_id="give_up", python_callable=give_up, retries=5, **says)
        PythonOperator(task_id="flaky", python_callable=flaky, retries=2, **says)
        PythonOperator(task_id="leave", python_callable=lambda: exit(3), retries=0, **says)
        PythonSensor(task_id="wait", python_callable=lambda: False, poke_interval=0, timeout=0, retries=5, **says)
    dag.on_failure_callback = [lambda context: called.append(context["reason"])]
    ended = run_in_foreground(dag)
    assert [(task.try_number, str(task.state)) for task in ended.tasks] == [
        (1, "failed"),
        (3, "success"),
        (1, "failed"),
        (1, "failed"),
    ]
    assert called == [
        "flaky retry", "give_up failure", "leave failure", "wait failure", "flaky retry", "flaky success",
        "task_failure",
    ]  # fmt: skip
    assert ended.task("leave").reason == "SystemExit: 3"


def test_in_the_foreground_the_environment_describes_the_running_task(dag, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "from outside")
    told = []

    def tell(context):
        told.append((os.environ["AIRFLOW_CTX_DAG_ID"], os.environ["AIRFLOW_CTX_TASK_ID"]))

    def fail(**context):
        tell(context)
        raise ValueError

    with dag:
        first = PythonOperator(task_id="first", python_callable=lambda **context: tell(context))
        first >> PythonOperator(task_id="second", python_callable=fail, on_failure_callback=tell)
    before = dict(os.environ)
    run_in_foreground(dag)
    assert told == [(dag.dag_id, "first"), (dag.dag_id, "second"), (dag.dag_id, "second")]
    assert dict(os.environ) == before


def test_in_the_foreground_a_fail_fast_dag_runs_only_its_teardowns():
    with DAG("d", fail_fast=True) as dag:
        first = BashOperator(task_id="first", bash_command="exit 1")
        PythonOperator(task_id="other", python_callable=lambda: None)
        after = BashOperator(task_id="after", bash_command="true")
        first >> after >> BashOperator(task_id="td", bash_command="true").as_teardown()
    run = dag.test()
    assert {task.task_id: task.state for task in run.tasks} == {
        "first": "failed", "other": "skipped", "after": "skipped", "td": "success",
    }  # fmt: skip
