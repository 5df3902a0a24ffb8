"""DAG files as texts: written for Airflow 3, and moved over by their import lines alone."""

TUTORIAL = '''
from datetime import datetime, timedelta
import textwrap
from asynsched import DAG, BashOperator

with DAG(
    "tutorial",
    default_args={"depends_on_past": False, "retries": 1, "retry_delay": timedelta(minutes=5)},
    description="A simple tutorial DAG",
    schedule=timedelta(days=1),
    start_date=datetime(2021, 1, 1),
    catchup=False,
    tags=["example"],
) as dag:
    t1 = BashOperator(task_id="print_date", bash_command="date")
    t2 = BashOperator(task_id="sleep", depends_on_past=False, bash_command="sleep 0", retries=3)
    t1.doc_md = textwrap.dedent("""\\
    #### Task Documentation
    """)
    dag.doc_md = """This is a documentation placed anywhere"""
    templated_command = textwrap.dedent(
        """
    {% for i in range(5) %}
        echo "{{ ds }}"
        echo "{{ macros.ds_add(ds, 7)}}"
    {% endfor %}
    """
    )
    t3 = BashOperator(task_id="templated", depends_on_past=False, bash_command=templated_command)
    t1 >> [t2, t3]
'''

TASKFLOW = '''
import json
from datetime import datetime
from asynsched import dag, task

@dag(schedule=None, start_date=datetime(2021, 1, 1), catchup=False, tags=["example"])
def tutorial_taskflow_api():
    """Load three orders."""
    @task()
    def extract():
        """#### Extract task"""
        return json.loads('{"1001": 301.27, "1002": 433.21, "1003": 502.22}')

    @task(multiple_outputs=True)
    def transform(order_data_dict: dict):
        return {"total_order_value": sum(order_data_dict.values())}

    @task()
    def load(total_order_value: float):
        print(f"Total order value is: {total_order_value:.2f}")
        return round(total_order_value, 2)

    order_data = extract()
    order_summary = transform(order_data)
    load(order_summary["total_order_value"])

tutorial_taskflow_api()
'''

BRANCHING = """
import random
from asynsched import DAG, BranchPythonOperator, EmptyOperator, Label, TaskGroup, TriggerRule, chain

with DAG("branching") as dag:
    branching = BranchPythonOperator(task_id="branching", python_callable=lambda: ["branch_b", "group"])
    join = EmptyOperator(task_id="join", trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    for option in ("branch_a", "branch_b"):
        branching >> Label(option) >> EmptyOperator(task_id=option) >> EmptyOperator(task_id=f"after_{option}") >> join
    with TaskGroup("group") as group:
        EmptyOperator(task_id="first") >> EmptyOperator(task_id="second")
    chain(branching, group, join)
"""

SHORT_CIRCUIT = """
from asynsched import DAG, EmptyOperator, ShortCircuitOperator, chain, task, TriggerRule

with DAG("short_circuit"):
    true = ShortCircuitOperator(task_id="condition_is_true", python_callable=lambda: True)
    false = ShortCircuitOperator(task_id="condition_is_false", python_callable=lambda: False)
    chain(true, EmptyOperator(task_id="ran"))
    chain(false, EmptyOperator(task_id="skipped"), EmptyOperator(task_id="later", trigger_rule=TriggerRule.ALL_DONE))

    @task.short_circuit(ignore_downstream_trigger_rules=False)
    def check(): return False
    chain(check(), EmptyOperator(task_id="near"), EmptyOperator(task_id="far", trigger_rule=TriggerRule.ALL_DONE))
"""

DECORATED = """
import asyncio
from asynsched import DAG, AsynschedSkipException, Param, PokeReturnValue, get_current_context
from asynsched import setup, task, task_group, teardown

params = {"n": Param(2, type="integer", minimum=1), "free": "x"}
with DAG("decorated", params=params, user_defined_macros={"shout": str.upper}):
    @task.bash(env={"GREETING": "{{ params.free }}"})
    def greet(name): return f"echo $GREETING {name} {{{{ shout('hi') }}}}"

    @task
    async def wait(params=None):
        await asyncio.sleep(0)
        return params["n"]

    @task.branch
    def choose(n): return None if n > 1 else "greet"

    @task.sensor(poke_interval=0, timeout=5, mode="reschedule")
    def there(): return PokeReturnValue(is_done=True, xcom_value="found")

    @task.run_if(lambda context: context["params"]["n"] > 100, skip_message="too few")
    @task
    def many(): return 1

    @task.skip_if(lambda context: False)
    @task
    def context_of(**context):
        assert get_current_context() is not None and context["task"].task_id == "context_of"
        return sorted(set(context) & {"ds", "ti", "dag_run", "run_id", "logical_date", "var", "conn"})

    @task_group
    def pipeline(n):
        @task
        def double(x): return 2 * x
        @task
        def triple(x): return [3 * x, 4 * x]
        return triple(double(n))

    @setup
    def make(): return "made"
    @teardown
    def clean(x): return x

    n = wait()
    choose(n) >> greet("you")
    there() >> many()
    context_of()
    pipeline(n)
    pipeline(n)
    @task
    def work(): raise AsynschedSkipException("nothing to do")
    m = make()
    m >> work() >> clean(m).as_teardown(setups=m)
"""

CLASSIC = """
from datetime import datetime
from asynsched import DAG, BaseOperator, BaseSensorOperator, EmptyOperator, PythonOperator, cross_downstream

class HelloOperator(BaseOperator):
    template_fields = ("name",)
    def __init__(self, name: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.name = name
    def execute(self, context):
        return f"Hello {self.name}!"

class Fixed(HelloOperator):
    def __init__(self, **kwargs):
        super().__init__(name="{{ dag.dag_id }}", retries=7, **kwargs)

class Third(BaseSensorOperator):
    looks = 0
    def poke(self, context):
        Third.looks += 1
        return Third.looks == 3

def show(a, b=None, *, ds, **kwargs):
    return [a, b, ds, kwargs["templates_dict"]]

default_args = {"retries": 2, "name": "default", "owner": "ops"}
with DAG("classic", start_date=datetime(2024, 1, 1), default_args=default_args) as dag:
    hello = HelloOperator(task_id="hello")
    named = HelloOperator(task_id="named", name=hello.output)
    fixed = Fixed(task_id="fixed")
    third = Third(task_id="third", poke_interval=0)
    shown = PythonOperator(
        task_id="shown", python_callable=show, op_args=["{{ ti.task_id }}"], op_kwargs={"b": ["{{ run_id[:6] }}"]},
        templates_dict={"n": "{{ ti.try_number }}"},
    )
    end = EmptyOperator(task_id="end")
    end.set_upstream([third, shown])
cross_downstream([hello, fixed], [third, shown])
"""

SETUPS = """
from asynsched import DAG, EmptyOperator, PythonOperator

def fail(): raise ValueError("no")

with DAG("setups"):
    make = EmptyOperator(task_id="make").as_setup()
    clean = EmptyOperator(task_id="clean").as_teardown(setups=make)
    with clean:
        EmptyOperator(task_id="one") >> PythonOperator(task_id="two", python_callable=fail)
"""

PENDULUM = """
import pendulum
from asynsched import DAG, PythonOperator, task

def reckoned(data_interval_start, **_):
    return data_interval_start.in_timezone(pendulum.timezone("Asia/Tokyo")).format("dddd, D MMM")

with DAG(
    "pendulums",
    schedule=pendulum.duration(days=1),
    start_date=pendulum.datetime(2024, 1, 1, tz="America/New_York"),
    end_date=pendulum.parse("2034-01-01"),
    default_args={"retries": 1, "retry_delay": pendulum.duration(minutes=5)},
    dagrun_timeout=pendulum.duration(hours=1),
):
    PythonOperator(
        task_id="shown", python_callable=lambda text: text, op_args=["{{ data_interval_end.subtract(days=1) | ds }}"]
    )
    PythonOperator(task_id="reckoned", python_callable=reckoned)
"""
