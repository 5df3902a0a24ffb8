"""Every way in which a task may end."""

import os
import signal
import sys
from datetime import timedelta

from asynsched import (
    DAG,
    AsynschedFailException,
    AsynschedSkipException,
    BashOperator,
    EmptyOperator,
    ExceptionRetryPolicy,
    RetryAction,
    RetryRule,
    get_current_context,
    task,
)


@task(retries=3, retry_delay=0)
def third_time_lucky():
    number = get_current_context()["ti"].try_number
    print("this is try", number)
    if number < 3:
        raise RuntimeError(f"unlucky {number}")


@task(retries=1, retry_delay=timedelta(0))
def never_lucky():
    raise RuntimeError("unlucky for ever")


@task(retries=5)
def hopeless():
    raise AsynschedFailException("no try will help")


@task
def not_today():
    raise AsynschedSkipException("not today")


@task
def leaves():
    sys.exit(3)


@task
def leaves_at_once():
    os._exit(4)


def mourn(context):
    print("lost:", context["ti"].try_number, context["exception"])


@task(on_retry_callback=mourn, on_failure_callback=mourn)
def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


@task
def returns_an_object():
    return object()


@task(execution_timeout=timedelta(seconds=1))
def takes_too_long():
    import subprocess

    subprocess.run(["sleep", "1000"], check=True)


POLICY = ExceptionRetryPolicy([
    RetryRule("builtins.ConnectionError", retry_delay=timedelta(0), reason="the other side was busy"),
    RetryRule([PermissionError, ValueError], RetryAction.FAIL, reason="no try would help"),
])  # fmt: skip


@task(retries=1, retry_policy=POLICY)
def busy_at_first():
    if get_current_context()["ti"].try_number == 1:
        raise ConnectionRefusedError("busy")


@task(retries=1, retry_policy=POLICY)
def not_allowed():
    raise PermissionError("who are you?")


with DAG("ends", schedule="@once"):
    busy_at_first()
    not_allowed()
    third_time_lucky()
    never_lucky() >> EmptyOperator(task_id="after_never_lucky")
    hopeless()
    not_today() >> EmptyOperator(task_id="after_not_today")
    leaves()
    leaves_at_once()
    is_killed()
    returns_an_object()
    takes_too_long()
    BashOperator(task_id="bash_fails", bash_command="echo before the end; exit 7")
    BashOperator(task_id="bash_skips", bash_command="exit 99")
