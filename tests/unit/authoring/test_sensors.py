"""Sensors: when they look, and when they no longer wait."""

import datetime as dt

import pytest

from asynsched import (
    DAG,
    AsynschedSensorTimeout,
    AsynschedSkipException,
    DagError,
    DateTimeSensor,
    FileSensor,
    PythonSensor,
    TimeDeltaSensor,
    task,
)
from asynsched.authoring import defaults
from tests.unit.authoring.one_task import DATE, run


def test_sensors_wait_time_out_skip_and_look_again(dag, supervisor, tmp_path, monkeypatch):
    wanted = tmp_path / "sub" / "file.txt"
    looks = {"poke_interval": 0, "timeout": 0, "dag": dag}
    missing = FileSensor(task_id="f", filepath=wanted, **looks)
    with pytest.raises(AsynschedSensorTimeout, match="its timeout is 0"):
        run(missing)
    with pytest.raises(AsynschedSkipException):
        run(FileSensor(task_id="soft", filepath=wanted, soft_fail=True, **looks))
    wanted.parent.mkdir()
    wanted.write_text("")
    monkeypatch.setenv("AIRFLOW_CONN_FOLDER", f'{{"conn_type": "fs", "extra": {{"path": "{tmp_path}"}}}}')
    assert run(FileSensor(task_id="g", filepath="**/*.txt", recursive=True, fs_conn_id="folder", **looks)).value is None

    def broken():
        raise RuntimeError("down")

    with pytest.raises(RuntimeError):
        run(PythonSensor(task_id="b", python_callable=broken, **looks))
    with pytest.raises(AsynschedSkipException, match="down"):
        run(PythonSensor(task_id="never", python_callable=broken, never_fail=True, **looks))
    with pytest.raises(AsynschedSensorTimeout):
        run(PythonSensor(task_id="late", python_callable=lambda: False, never_fail=True, **looks))
    with pytest.raises(AsynschedSensorTimeout):
        run(PythonSensor(task_id="silent", python_callable=broken, silent_fail=True, **looks))
    for deferrable in (False, True):
        for number, delta in enumerate((dt.timedelta(seconds=60), dt.timedelta(days=-1), 1, "{{ 1 }}")):
            run(TimeDeltaSensor(task_id=f"delta_{number}_{deferrable}", delta=delta, deferrable=deferrable, **looks))
        run(FileSensor(task_id=f"file_{deferrable}", filepath=wanted, deferrable=deferrable, **looks))


@pytest.fixture
def set_options():
    yield defaults.set_defaults
    defaults.set_defaults({})


def test_options_of_airflow_decide_what_sensors_do_by_default(set_options):
    set_options({"operators.default_deferrable": "True # all of them", "sensors.default_timeout": "60"})
    sensors = [
        FileSensor(task_id="file", filepath="x"),
        TimeDeltaSensor(task_id="delta", delta=1, deferrable=False, timeout=5),
        # In Airflow, only its other class can wait in a trigger.
        DateTimeSensor(task_id="at", target_time=DATE),
    ]
    assert [(sensor.deferrable, sensor.timeout) for sensor in sensors] == [(True, 60), (False, 5), (False, 60)]
    set_options({"operators.default_deferrable": "yes", "sensors.default_timeout": "long"})
    with pytest.raises(DagError, match=r"default_deferrable must be true or false, not 'yes'"):
        FileSensor(task_id="file", filepath="x", timeout=1)
    with pytest.raises(DagError, match=r"default_timeout must be a number of seconds, not 'long'"):
        FileSensor(task_id="file", filepath="x")


def test_the_looks_of_a_sensor_grow_apart_as_airflows_do(dag):
    def sensor(**options):
        growing = {"exponential_backoff": True, "poke_interval": 10, "task_id": f"s{len(dag.tasks)}", **options}
        return PythonSensor(python_callable=lambda: False, dag=dag, **growing)

    poking, bounded = sensor(), sensor(max_wait=60)
    for n, least in enumerate([5, 10, 20, 40, 80], start=1):
        assert least <= poking._next_interval(n, 0.0, DATE) < 2 * least
        assert bounded._next_interval(n, 0.0, DATE) <= 60
    assert poking._next_interval(4, 0.0, DATE) == poking._next_interval(4, 0.0, DATE)
    assert sensor(timeout=100)._next_interval(4, 97.5, DATE) == 3
    rescheduled = sensor(mode="reschedule")
    passed = 0.0
    for n in range(1, 6):
        # A new process makes each look, and knows only when the first one was.
        assert rescheduled._next_interval(1, passed, DATE) == rescheduled._grown_interval(n, DATE)
        passed += rescheduled._grown_interval(n, DATE)
    assert sensor(exponential_backoff=False)._next_interval(9, 0.0, DATE) == 10


def test_in_the_foreground_a_rescheduled_sensor_lets_others_run(tmp_path):
    flag = tmp_path / "flag"
    with DAG("waits") as dag:

        @task.sensor(poke_interval=0.05, timeout=60, mode="reschedule")
        def wait():
            return flag.exists()

        @task
        def after():
            return "seen"

        @task
        def make():
            flag.touch()

        wait() >> after()
        make()
    run = dag.test()
    assert (str(run.state), flag.exists()) == ("success", True)
