"""One task that is run by itself, without a scheduler."""

import datetime as dt

from asynsched import PythonOperator
from asynsched.authoring.running.execution import execute
from asynsched.authoring.running.try_context import build_context
from asynsched.protocol.messages import RunContext, TaskInstanceFacts

DATE = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


def run(operator, *, logical_date=DATE, conf=None, **facts):
    return execute(operator, context_of(operator, logical_date=logical_date, conf=conf, **facts))


def context_of(operator, *, logical_date=DATE, conf=None, **facts):
    interval = {} if logical_date is None else {"data_interval_start": DATE - DAY, "data_interval_end": DATE}
    about = RunContext(
        dag_id="d",
        run_id="r1",
        run_type="manual",
        run_after=DATE,
        logical_date=logical_date,
        conf=conf or {},
        **interval,
    )
    return build_context(operator, about, TaskInstanceFacts(**facts))


def rendered(dag, template, **kwargs):
    name = f"t{len(dag.tasks) or ''}"
    operator = PythonOperator(task_id=name, dag=dag, python_callable=lambda x: x, op_args=[template])
    return run(operator, **kwargs).value
