"""The message about an author's mistake: it names the DAG, the task and the argument at fault."""

from types import ModuleType

import pytest

from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import collect_dags
from asynsched.errors import AsynschedError, DagCycleError, DagError, DagWarning, SerializationError
from asynsched.serialization.encode import serialize_dag
from tests.unit.authoring.loading import load

HEAD = """
from datetime import datetime, timedelta
from pathlib import Path
from dateutil.relativedelta import relativedelta
from asynsched import *
from asynsched import DAG
class Odd(BaseOperator):
    template_fields = ("missing",)
def f(x): pass
def g(ds="today"): pass
either = {"follow_task_ids_if_true": "b", "follow_task_ids_if_false": "c"}
"""

MISTAKES = [
    ("DAG('a b')", DagError, ["dag_id", "'a b'", "' '"]),
    ("DAG('x' * 10_000)", DagError, ["dag_id", "10000 characters", "250"]),
    ("DAG('')", DagError, ["dag_id is empty"]),
    ("DAG(7)", DagError, ["dag_id", "int"]),
    ("DAG('d', nonsense=1)", TypeError, ["'d'", "nonsense"]),
    ("DAG('d', max_active_run=1)", TypeError, ["max_active_run' (did you mean max_active_runs", "?)"]),
    ("DAG('d', schedule='61 * * * *')", DagError, ["'d'", "61 * * * *"]),
    ("DAG('d', schedule='@fortnightly')", DagError, ["'d'", "@fortnightly"]),
    ("DAG('d', schedule=CronTriggerTimetable('@daily', timezone='Mars/Base'))", DagError, ["Mars/Base"]),
    ("DAG('d', start_date='soon')", DagError, ["'d'", "start_date", "soon"]),
    ("DAG('d', schedule='@daily', catchup=True)", DagError, ["'d'", "start_date"]),
    ("DAG('d', schedule='@continuous', max_active_runs=2)", DagError, ["'d'", "max_active_runs=1"]),
    ("DAG('d', dagrun_timeout=timedelta.max)", DagError, ["'d'", "dagrun_timeout", "100 years"]),
    ("DAG('d', dagrun_timeout=3600)", None, []),
    ("DAG('d', dagrun_timeout='1h')", DagError, ["'d'", "dagrun_timeout", "a number of seconds", "'1h'"]),
    ("DAG('d', catchup='no')", DagError, ["'d'", "catchup", "True, False or 'latest'", "'no'"]),
    ("DAG('d', catchup=0)", DagError, ["'d'", "catchup", "True, False or 'latest'", "not 0"]),
    ("DAG('d', fail_fast='no')", DagError, ["'d'", "fail_fast", "True or False", "'no'"]),
    ("DAG('d', description=7)", DagError, ["'d'", "description", "a string or None", "int"]),
    ("DAG('d', user_defined_macros=[f])", DagError, ["'d'", "user_defined_macros", "a dict or None", "list"]),
    ("DAG('d', template_searchpath=7)", DagError, ["'d'", "template_searchpath", "a string or a list", "int"]),
    ("DAG('d', schedule=CronTriggerTimetable('@daily', timezone='UTC', run_immediately='no'))", DagError,
     ["run_immediately", "'no'"]),
    ("DAG('d', schedule=EventsTimetable([], restrict_to_events='no'))", DagError, ["restrict_to_events", "'no'"]),
    ("DAG('d', tags=['x' * 101])", DagError, ["'d'", "tag", "101", "100"]),
    ("DAG('d', on_failure_callback='mail')", DagError, ["'d'", "on_failure_callback", "'mail'"]),
    ("DAG('d', params={'n': Param('a', type='integer')})", None, []),
    ("DAG('d', schedule='@daily', params={'n': Param('a', type='integer')})", DagError,
     ["'d'", "'n'", "'a' is not of type 'integer'"]),
    ("DAG('d', schedule='@daily', params={'n': Param(type='integer')})", DagError, ["'d'", "'n'", "no default"]),
    ("DAG('d', params={'n': Param(1, type='number', minimum='x')})", DagError, ["'d'", "'n'", "invalid at minimum"]),
    ("DAG('d', params={'n': Param(None, type='integr')})", DagError, ["'n'", "at type", "'integr'", "'integer'"]),
    ("DAG('d', params={'n': Param(1, schema='integer')})", DagError, ["'n'", "'integer' is not of type 'object'"]),
    ("dag = DAG('d', params={'n': Param(1, labels={(1, 2): 'x'})})", SerializationError, ["'n'", "schema", "tuple"]),
    ("dag = DAG('d', params={'n': {1}})", SerializationError, ["'d'", "'n'", "set"]),
    ("dag = DAG('d', params={'n': float('nan')})", SerializationError, ["'d'", "'n'", "nan"]),
    ("dag = DAG('d', params={'n': 2**80})", None, []),
    ("dag = DAG('d', allowed_run_types='manual')", None, []),
    ("dag = DAG('d', allowed_run_types=['manualy'])", DagError, ["'d'", "allowed_run_types", "'manualy'", "manual"]),
    ("dag = DAG('d', schedule='@daily', allowed_run_types=['manual', 'backfill'])", DagError,
     ["'d'", "allowed_run_types must include scheduled"]),
    ("EmptyOperator(task_id='a') >> EmptyOperator(task_id='b')", DagError, ["'a'", "'b'", "no DAG"]),
    ("chain(*(EmptyOperator(task_id='a', dag=DAG(name)) for name in 'de'))", DagError, ["'d'", "'e'"]),
]  # fmt: skip
INSIDE = [
    ("EmptyOperator(task_id='a b')", DagError, ["task_id", "'a b'"]),
    ("[EmptyOperator(task_id='a') for _ in '12']", DagError, ["'d'", "'a'", "taken"]),
    ("EmptyOperator(task_id='a', retires=1)", TypeError, ["(task_id: a)", "'retires' (did you mean retries?)"]),
    ("EmptyOperator.partial(task_id='a', retires=1)", TypeError, ["no argument 'retires' (did you mean retries?)"]),
    ("BashOperator(task_id='a')", TypeError, ["BashOperator", "task_id: a", "'bash_command'"]),
    ("BashOperator('a')", TypeError, ["keyword arguments"]),
    ("EmptyOperator(task_id='a', trigger_rule='all_succeed')", DagError, ["'d'", "'a'", "all_success, "]),
    ("EmptyOperator(task_id='a', weight_rule='up')", DagError, ["'a'", "weight_rule", "downstream"]),
    ("EmptyOperator(task_id='a', retries='many')", DagError, ["'a'", "retries", "'many'"]),
    ("EmptyOperator(task_id='a', retries=-1)", DagError, ["'a'", "retries", "at least 0"]),
    ("EmptyOperator(task_id='a', retry_delay='5m')", DagError, ["'a'", "retry_delay", "'5m'"]),
    ("EmptyOperator(task_id='a', retry_delay=timedelta.max)", DagError, ["'a'", "retry_delay", "100 years"]),
    ("EmptyOperator(task_id='a', pool_slots=0)", DagError, ["'a'", "pool_slots"]),
    ("EmptyOperator(task_id='a', pool='')", None, []),
    ("EmptyOperator(task_id='a', pool=7)", DagError, ["'a'", "pool"]),
    ("EmptyOperator(task_id='a', start_date=7)", DagError, ["'a'", "start_date"]),
    ("EmptyOperator(task_id='a', params={'n': Param('a', type='integer')})", None, []),
    ("EmptyOperator(task_id='a', params={'n': Param(1, type='integr')})", DagError, ["'a'", "'n'", "'integr'"]),
    ("EmptyOperator(task_id='a') >> 7", DagError, ["int", "7"]),
    ("EmptyOperator(task_id='a') >> Label('1') >> Label('2')", DagError, ["two labels"]),
    ("chain([EmptyOperator(task_id='a')], [EmptyOperator(task_id=n) for n in 'bc'])", DagError, ["chain()", "1 and 2"]),
    ("EmptyOperator(task_id='a', depends_on_past='False')", DagError, ["'d'", "'a'", "depends_on_past", "'False'"]),
    ("EmptyOperator(task_id='a', pre_execute='f')", DagError, ["'a'", "pre_execute", "a function or None", "str"]),
    ("EmptyOperator(task_id='a', doc_md=7)", DagError, ["'d'", "'a'", "doc_md", "int"]),
    ("EmptyOperator(task_id='a', depends_on_past=None)", None, []),
    ("task(multiple_outputs='no')(f)()", DagError, ["'f'", "multiple_outputs", "'no'"]),
    ("BashOperator(task_id='a', bash_command='', append_env=1)", DagError, ["'a'", "append_env", "not 1"]),
    ("BashOperator(task_id='a', bash_command='', env=['A=b'])", DagError, ["'a'", "env", "a dict or None", "list"]),
    ("BashOperator(task_id='a', bash_command='', env='{{ params.env }}')", None, []),
    ("BashOperator(task_id='a', bash_command='', cwd=Path('/'))", None, []),
    ("BashOperator(task_id='a', bash_command='', skip_on_exit_code='x')", DagError, ["skip_on_exit_code", "'x'"]),
    ("BashOperator(task_id='a', bash_command='', skip_on_exit_code=range(90, 100))", None, []),
    ("BashOperator.partial(task_id='a', append_env='no').expand(bash_command=['x'])", DagError, ["'a'", "append_env"]),
    ("BashSensor(task_id='a', bash_command='', retry_exit_code='x')", DagError, ["'a'", "retry_exit_code", "'x'"]),
    ("PythonSensor(task_id='a', python_callable='f')", DagError, ["'a'", "python_callable", "a function", "str"]),
    ("BranchDateTimeOperator(task_id='a', **either, target_lower=1, target_upper=None)", DagError,
     ["'a'", "target_lower", "a time, not 1"]),
    ("ExternalTaskSensor(task_id='a', external_dag_id='x', external_task_ids='bc')", DagError,
     ["'a'", "external_task_ids", "a list or None", "str"]),
    ("ExternalTaskSensor(task_id='a', external_dag_id='x', execution_delta=relativedelta(months=1))", None, []),
    ("ExternalTaskSensor(task_id='a', external_dag_id='x', execution_delta='1h')", DagError,
     ["'a'", "execution_delta", "a timedelta or None", "str"]),
    ("ExternalTaskSensor(task_id='a', external_dag_id='x', poll_interval='1')", DagError, ["poll_interval", "'1'"]),
    ("TriggerDagRunOperator(task_id='a', trigger_dag_id='x', poke_interval='1')", DagError, ["poke_interval", "'1'"]),
    ("TriggerDagRunOperator(task_id='a', trigger_dag_id='x', wait_for_completion='{{ params.wait }}')", None, []),
    ("TaskGroup('g', prefix_group_id='no')", DagError, ["'g'", "prefix_group_id", "'no'"]),
    ("TaskGroup('g.h')", DagError, ["group_id", "'g.h'"]),
    ("TaskGroup('g'); TaskGroup('g')", DagError, ["'d'", "'g'", "twice"]),
    ("TaskGroup('g'); EmptyOperator(task_id='g')", DagError, ["'g'", "task group"]),
    ("task(f)()", DagError, ["'f'", "'x'"]),
    ("task(g)()", DagError, ["'ds'", "None"]),
    ("task(f)(1, 2)", DagError, ["cannot be called"]),
    ("task(task_id='a')(task(f))", DagError, ["twice"]),
    ("[x for x in task(task_id='t')(lambda: 1)()]", TypeError, ["'t'", "iterate"]),
    ("task.run_if(bool)(f)", DagError, ["above @task"]),
    ("FileSensor(task_id='a', filepath='x', mode='push')", DagError, ["'a'", "mode", "poke, reschedule"]),
    ("FileSensor(task_id='a', filepath='x', soft_fail=True, never_fail=True)", DagError, ["'a'", "soft_fail"]),
    ("EmptyOperator(task_id='a').__enter__()", DagError, ["'a'", "neither setup nor teardown"]),
    ("EmptyOperator(task_id='a').as_setup().as_teardown()", DagError, ["'a'", "setup"]),
    ("EmptyOperator(task_id='s').as_setup() >> EmptyOperator(task_id='a', trigger_rule='all_done')", DagError,
     ["'a'", "'s'", "all_success"]),
    ("Odd(task_id='a')", SerializationError, ["'d'", "'a'", "'missing'"]),
    ("a, b, c = (EmptyOperator(task_id=n) for n in 'abc'); a >> b >> c >> a; EmptyOperator(task_id='e') << c",
     DagCycleError, ["'d'", "a >> b >> c >> a"]),
    ("a = EmptyOperator(task_id='a'); a >> a", DagCycleError, ["a >> a"]),
    ("EmptyOperator(task_id='a').doc_md = 7", SerializationError, ["a", "doc_md", "int"]),
]  # fmt: skip


def outcome(text):
    try:
        for dag in load(HEAD + text):
            serialize_dag(dag)
    except (AsynschedError, TypeError) as exc:
        return exc
    return None


@pytest.mark.parametrize(("text", "error", "words"), MISTAKES + [(f"with DAG('d'): {t}", e, w) for t, e, w in INSIDE])
def test_mistake_gets_one_clear_message(text, error, words):
    exc = outcome(text)
    if error is None:
        assert exc is None
        return
    assert isinstance(exc, error)
    assert "\n" not in str(exc)
    for word in words:
        assert word in str(exc)


_UNSET = "{'owner': None, 'queue': None, 'retry_delay': None, 'retry_exponential_backoff': None, 'weight_rule': None}"


@pytest.mark.parametrize(
    ("of_dag", "of_task"),
    [
        ("schedule=[]", ""), ("dagrun_timeout=timedelta(0)", ""), ("on_failure_callback=[None]", ""), ("tags=''", ""),
        (f"default_args={_UNSET}", ""), ("", f"**{_UNSET}"), ("", "owner=''"), ("", "execution_timeout=timedelta(0)"),
        ("", "on_failure_callback=[None]"),
    ],
)  # fmt: skip
def test_values_that_say_nothing_mean_the_default(of_dag, of_task):
    [given], [default] = (
        load(f"{HEAD}with DAG('d', {dag}):\n    EmptyOperator(task_id='a', {task})\n    "
             f"EmptyOperator.partial(task_id='b', {task}).expand(params=[{{}}])")
        for dag, task in ((of_dag, of_task), ("", ""))
    )  # fmt: skip
    assert serialize_dag(given) == serialize_dag(default)


@pytest.mark.parametrize("tags", ["'etl'", "('etl')", "['etl']", "{'etl'}"])
def test_a_string_is_one_tag(tags):
    [dag] = load(f"{HEAD}dag = DAG('d', tags={tags})")
    assert dag.tags == {"etl"}


def test_secret_values_of_unknown_arguments_are_not_shown():
    exc = outcome("with DAG('d'): BashOperator(task_id='a', bash_command='', pasword='hunter2')")
    assert "pasword" in str(exc)
    assert "hunter2" not in str(exc)


def test_of_several_dags_with_one_id_the_last_is_kept_and_each_other_is_warned_of():
    lines = ["", "with DAG('d'): pass", "plain = DAG('d')", "with DAG('d', description='last') as last: pass"]
    with pytest.warns(DagWarning, match="'d' that is made here is left out, because line 4 makes another") as warned:
        [dag] = load("from asynsched import DAG" + "\n".join(lines))
    assert (dag.description, [one.lineno for one in warned]) == ("last", [2, 3])


def test_two_files_of_an_archive_cannot_have_one_dag_id():
    forget_registered()
    archive = ModuleType("archive")
    for name in "ab":
        exec(compile(f"from asynsched import DAG\n{name} = DAG('d')", f"/dags/x.zip/{name}.py", "exec"), vars(archive))
    with pytest.raises(DagError, match=r"'d': one made in /dags/x.zip/a.py, line 2, and one in /dags/x.zip/b.py"):
        collect_dags(archive)


def test_arguments_without_effect_are_warned_of():
    with pytest.warns(UserWarning, match=r"task 'a': run_as_user, sla have no effect"):
        load(HEAD + "with DAG('d'): EmptyOperator(task_id='a', sla=3, run_as_user='nobody')")


def test_a_wrong_timetable_names_its_class():
    text = (
        HEAD + "class Mine(NullTimetable):\n    def validate(self): raise ValueError('no')\nDAG('d', schedule=Mine())\n"
    )
    exc = outcome(text + "dag = DAG('d', schedule=Mine())")
    assert "Mine" in str(exc)


def test_types_that_operators_of_a_dag_file_name_are_not_enforced():
    operator = "class Lax(BaseOperator):\n    def __init__(self, *, flag: bool, **kw): super().__init__(**kw)\n"
    assert outcome(f"{operator}with DAG('d'): Lax(task_id='a', flag='yes')") is None
