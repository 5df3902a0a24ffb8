"""One task of the standard provider that is run by itself."""

import datetime as dt

from asynsched import DAG

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)  # a Monday


def outcome(make, **arguments):
    with DAG("d", params={"p": "param"}):
        made = make(task_id="t", **arguments)
    return made.dag.test(logical_date=NOON).task("t")
