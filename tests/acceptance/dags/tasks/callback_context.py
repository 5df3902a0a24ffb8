"""Callbacks that record their context, and callbacks that fail."""

import json

from asynsched import DAG, task


class Unlucky(Exception):
    def __init__(self, number, *, hint):
        super().__init__(number, hint)


def tell(context):
    ti, exc = context["ti"], context["exception"]
    told = {
        "is_unlucky": isinstance(exc, Unlucky),
        "args": list(exc.args),
        "state": ti.state,
        "max_tries": ti.max_tries,
        "try_number": ti.try_number,
        "lasted": (ti.end_date - ti.start_date).total_seconds() > 0,
    }
    print(json.dumps(told))


def tell_of_run(context):
    print(json.dumps({"reason": context["reason"], "state": context["dag_run"].state}))


def breaks(context):
    print("about to break")
    raise LookupError("broken callback")


with DAG("callback_context", schedule="@once", on_failure_callback=[breaks, tell_of_run]):

    @task(retries=1, retry_delay=0, on_retry_callback=tell, on_failure_callback=[breaks, tell])
    def fails():
        raise Unlucky(7, hint="why")

    fails()
