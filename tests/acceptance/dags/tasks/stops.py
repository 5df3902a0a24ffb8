"""Runs that end before their tasks would."""

import os
import time
from datetime import timedelta
from pathlib import Path

from asynsched import DAG, task

ASLEEP = Path(os.environ["MARKS"] + ".asleep") if "MARKS" in os.environ else None


@task
def sleeps():
    ASLEEP.touch()
    time.sleep(1000)


@task(task_id="sleeps")
def sleeps_unseen():
    time.sleep(1000)


@task
def breaks():
    while not ASLEEP.exists():
        time.sleep(0.01)
    raise RuntimeError("broken")


@task
def cleans():
    pass


with DAG("fails_fast", schedule="@once", fail_fast=True):
    [sleeps(), breaks()] >> cleans.override(task_id="after")() >> cleans().as_teardown()

with DAG("out_of_time", schedule="@once", dagrun_timeout=timedelta(seconds=1)):
    sleeps_unseen() >> cleans()  # the other one tells `breaks` to begin
