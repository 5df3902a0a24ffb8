"""A retry policy that decides by the exception, and a callback for each retry.

`call_service` fails in its first try and succeeds in its second, one second later. A `PermissionError` would not be
retried.

Needs:   nothing.
Runs:    once.
Prints:  `the service is busy` and `the service has answered` in the logs of the two tries of `call_service`;
         the callback has a log of its own.
"""

from datetime import datetime, timedelta

from asynsched import ExceptionRetryPolicy, RetryAction, RetryRule, dag, task

POLICY = ExceptionRetryPolicy(
    [
        RetryRule(exception=ConnectionError, retry_delay=timedelta(seconds=1)),
        RetryRule(exception=PermissionError, action=RetryAction.FAIL, reason="it would be refused again"),
    ]
)


def tell(context):
    print(f"{context['ti'].task_id} will be tried again after: {context.get('exception') or 'a failure'}")


@dag(schedule="@once", start_date=datetime(2026, 1, 1), tags=["example"])
def retries():
    @task(retries=2, retry_policy=POLICY, on_retry_callback=tell)
    def call_service(ti):
        if ti.try_number == 1:
            print("the service is busy")
            raise ConnectionError("the service is busy")
        print("the service has answered")

    call_service()


retries_dag = retries()

if __name__ == "__main__":
    retries_dag.test()
