"""A program serves a scheduler in its own event loop."""

import asyncio
import importlib.metadata
import logging
import multiprocessing
import re
import signal
import socket
import threading
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs
from uvicorn import Config
from uvicorn.supervisors.watchfilesreload import FileFilter

from asynsched import DAG, Asset, Scheduler
from asynsched.airflow import plugins_manager, policies
from asynsched.airflow.installation import entry_points_of_packages
from asynsched.clock import Clock
from asynsched.errors import AlreadyExists, AsynschedError, DagError, HomeInUse, NotFound, NotServing, SettingsError
from asynsched.fernet_keys import keys_of
from asynsched.keys import DagRunKey
from asynsched.parsing.processes.informed_parser import WARM_UP_DELAY
from asynsched.settings import LeaseSettings, MonitorSettings, Settings
from asynsched.store.engines.opening import open_database
from asynsched.store.runs.dag_runs import get_run, list_runs
from asynsched.store.runs.task_instances import load_task_instances
from asynsched.store.runs.xcoms import get_xcoms
from tests.support.embedding import Program
from tests.support.waiting import eventually

DAGS = """
    from asynsched import DAG, Asset, DagRunInfo, DataInterval, Param, Timetable, dag, task
    import os, time
    from pathlib import Path

    @dag(params={"n": Param(2, type="integer", minimum=0)})
    def numbers():
        @task
        def count(params):
            return tuple(range(params["n"]))

        @task
        def total(values):
            return sum(values)

        return total(count())

    numbers()

    with DAG("fails") as fails:
        @task
        def broken():
            raise ValueError("no way")

        broken()

    with DAG("waits") as waits:
        @task
        def hang():
            Path(os.environ["HANGS"]).write_text(str(os.getpid()))
            while True:
                time.sleep(0.01)

        hang()

    class TwoDays(Timetable):
        def infer_manual_data_interval(self, *, run_after):
            return DataInterval(run_after.subtract(days=2), run_after)

        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            last = last_automated_data_interval
            start = restriction.earliest if last is None else last.end
            return DagRunInfo.interval(start, start.add(days=2)) if start else None

    with DAG("own_timetable", schedule=TwoDays()) as own_timetable:
        @task
        def interval(data_interval_start=None, data_interval_end=None):
            return (data_interval_end - data_interval_start).days if data_interval_start else "none"

        interval()

    class Named(TwoDays):
        def generate_run_id(self, *, run_type, run_after, data_interval, **extra):
            days = (data_interval.end - data_interval.start).days if data_interval else "no"
            return f"{run_type}.{run_after.year}.{days}"

    with DAG("names_runs", schedule=Named()) as names_runs:
        @task(outlets=[Asset("named")])
        def nothing():
            pass

        nothing()

    with DAG("follows", schedule=Asset("orders", uri="s3://shop/orders")) as follows:
        @task
        def rows(*, triggering_asset_events):
            return [event.extra["rows"] for events in triggering_asset_events.values() for event in events]

        rows()
"""


@pytest.fixture
def program(program) -> Program:
    program.write(DAGS)
    return program


@pytest.fixture
def scheduler(program) -> Scheduler:
    return Scheduler(**program.options())


@asynccontextmanager
async def running(scheduler: Scheduler):
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        with anyio.fail_after(30):
            await scheduler.wait_idle()
        yield
        scheduler.request_stop()


async def test_a_program_runs_a_dag_and_gets_its_results(scheduler):
    async with running(scheduler):
        run = await scheduler.run("numbers", conf={"n": 4})
    assert (run.state, run.dag_id) == ("success", "numbers")
    assert [(task.task_id, task.state, task.result) for task in run.tasks] == [
        ("count", "success", (0, 1, 2, 3)),
        ("total", "success", 6),
    ]
    assert run.results == {"total": 6}, "its function returns it"


class Noting(Clock):
    """Notes each sleep."""

    def __init__(self) -> None:
        self.slept: list[timedelta] = []

    async def sleep(self, duration: timedelta) -> None:
        self.slept.append(duration)
        await super().sleep(duration)


async def test_waiting_for_idleness_and_stopping_do_not_poll(program):
    clock = Noting()
    scheduler = Scheduler(clock=clock, **program.options())
    async with running(scheduler):
        await scheduler.trigger("numbers")
        await scheduler.wait_idle()
    look_for_home = timedelta(seconds=scheduler.settings.lease.renew_interval)
    # The other pause is the one before the parse servers are warmed up, once the folder is read.
    assert [pause for pause in clock.slept if pause != look_for_home] in ([], [WARM_UP_DELAY])


async def test_a_timetable_in_a_dag_file_says_what_a_triggered_run_is_about(scheduler):
    async with running(scheduler):
        [task] = (await scheduler.run("own_timetable")).tasks
        assert task.result == 2
        await scheduler.trigger("own_timetable", run_id="undated", has_logical_date=False)
        await scheduler.wait_runs(2)
        undated = await scheduler._database.read(get_run, "own_timetable", "undated")
    assert (undated.logical_date, undated.data_interval_start, undated.state) == (None, None, "success")


LOADED_FOR_EACH_TRY = """
    import ctypes
    from asynsched import DAG, task

    library = ctypes.CDLL(None)
    library.pthread_create(ctypes.byref(ctypes.c_ulong()), None, library.pause, None)

    with DAG("loaded"):
        @task
        def say():
            return "said"

        say()
"""
"""A file that leaves a thread, so that no template keeps it."""


async def test_a_source_damaged_while_serving_is_restored_from_the_database(program):
    program.write(LOADED_FOR_EACH_TRY)
    scheduler = Scheduler(**program.options())
    async with running(scheduler):
        assert (await scheduler.run("loaded")).tasks[0].result == "said"
        [source] = (program.home / "sources").iterdir()
        text = source.read_bytes()
        for damage in (source.unlink, lambda: source.write_bytes(bytes(len(text)))):
            damage()
            assert (await scheduler.run("loaded")).tasks[0].result == "said"
            assert source.read_bytes() == text
        source.unlink()
        gone = sa.text("DELETE FROM source")
        await scheduler._database.write(lambda conn: conn.execute(gone))
        failed = await scheduler.run("loaded")
    assert failed.state == "failed"
    assert "the database does not give it either" in failed.tasks[0].reason


async def test_a_block_serves_and_an_error_in_it_or_in_the_scheduler_is_raised_as_it_is(program):
    day = datetime(2026, 1, 31, tzinfo=UTC)
    async with Scheduler(**program.options()) as scheduler:
        run = await scheduler.run("numbers", {"n": 1}, logical_date=day)
        assert (run.state, run.conf, run.logical_date, run.data_interval_end) == ("success", {"n": 1}, day, day)
        with pytest.raises(HomeInUse):
            async with Scheduler(**program.options()):
                pytest.fail("the home is taken")
    assert not program.processes()
    with pytest.raises(ZeroDivisionError):
        async with Scheduler(**program.options()):
            _ = 1 / 0

    async def serve_with_a_bug(wait):
        async with broken:
            broken._services.evaluator.tick = fail_with_a_bug
            await wait()

    for is_waiting in (False, True):
        broken = Scheduler(**program.options())

        async def wait(scheduler=broken, is_waiting=is_waiting):
            await (scheduler.run if is_waiting else scheduler.trigger)("numbers")
            await anyio.sleep_forever()

        with pytest.raises(RuntimeError, match="a bug"):
            await serve_with_a_bug(wait)
        with pytest.raises(NotServing):
            await broken.client().list_dags()


async def test_the_task_that_ends_a_block_may_be_another_one_than_began_it(scheduler, program):
    with anyio.fail_after(60):
        await asyncio.create_task(scheduler.__aenter__())
    assert (await scheduler.run("numbers", {"n": 1})).state == "success"
    await asyncio.wait_for(scheduler.__aexit__(None, None, None), 60)
    assert not program.processes()


async def test_an_error_is_logged_and_raised_at_the_end_of_a_block_that_cannot_be_cancelled(scheduler):
    await asyncio.create_task(scheduler.__aenter__())
    scheduler._services.evaluator.tick = fail_with_a_bug
    with capture_logs() as logs:
        with pytest.raises(NotServing):
            await scheduler.run("numbers", {"n": 1})
        await eventually(lambda: any(one["event"] == "scheduler.failed" for one in logs), "it is in the log")
    [error] = [one["exc_info"] for one in logs if one["event"] == "scheduler.failed"]
    assert str(error) == "a bug"
    with pytest.raises(RuntimeError, match="a bug"):
        await scheduler.__aexit__(None, None, None)


@pytest.mark.parametrize("when", ["begins", "serves", "ends"])
async def test_a_cancelled_block_ends_at_once_and_leaves_nothing_behind(program, when):
    scheduler = Scheduler(**program.options(shutdown_grace=600.0))
    is_running = anyio.Event()

    async def block():
        async with scheduler:
            await scheduler.trigger("waits")
            await eventually(program.hangs.exists, "a task runs")
            is_running.set()
            if when == "serves":
                await anyio.sleep_forever()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(block)
            if when == "begins":
                await eventually((program.home / "asynsched.db").exists, "the start is under way")
            else:
                await is_running.wait()
            if when == "ends":
                await scheduler.stopping.wait()
            tasks.cancel_scope.cancel()
    assert scheduler._stopped.is_set()
    assert not program.processes()


async def test_a_block_that_an_error_ends_does_not_wait_for_its_tasks(program):
    async def block():
        async with Scheduler(**program.options(shutdown_grace=600.0)) as scheduler:
            await scheduler.trigger("waits")
            await eventually(program.hangs.exists, "a task runs")
            raise ZeroDivisionError

    with anyio.fail_after(60), pytest.raises(ZeroDivisionError):
        await block()
    assert not program.processes()


@pytest.fixture
async def served(program):
    async with Scheduler(**program.options()) as scheduler:
        yield scheduler


async def test_a_fixture_may_yield_within_a_block(served):
    assert (await served.run("numbers", {"n": 1})).state == "success"


async def test_an_error_in_a_group_of_the_block_does_not_hide_that_of_the_scheduler(scheduler):
    async def block():
        async with scheduler, asyncio.TaskGroup() as tasks:
            scheduler._services.evaluator.tick = fail_with_a_bug
            tasks.create_task(scheduler.run("numbers"))

    with pytest.raises(RuntimeError, match="a bug"):
        await block()


async def test_a_scheduler_whose_task_is_cancelled_ends_its_block_with_an_error(scheduler, program):
    async def block():
        async with scheduler:
            [serving] = [task for task in asyncio.all_tasks() if task.get_name() == "scheduler"]
            serving.cancel()
            await anyio.sleep_forever()

    with pytest.raises(NotServing, match="was cancelled"):
        await block()
    assert not program.processes()


async def test_a_call_from_another_loop_is_refused_and_breaks_nothing(scheduler):
    async with running(scheduler):
        for call in (partial(scheduler.run, "numbers"), scheduler.wait_idle, scheduler.client().list_dags):
            with pytest.raises(AsynschedError, match="run_coroutine_threadsafe"):
                await anyio.to_thread.run_sync(asyncio.run, call())
        loop = asyncio.get_running_loop()
        run = asyncio.run_coroutine_threadsafe(scheduler.run("numbers", {"n": 1}), loop)
        assert (await anyio.to_thread.run_sync(run.result)).state == "success"


def test_a_loop_of_another_library_is_refused(program):
    for serving in (Scheduler(**program.options()).serve(), Scheduler(**program.options()).__aenter__()):
        with pytest.raises(AsynschedError, match="serves in an event loop of asyncio"):
            serving.send(None)


async def test_a_scheduler_serves_once_and_its_end_frees_the_address_of_its_monitor(program):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = program.options(monitor=MonitorSettings(listen=address))
    own = ExceptionGroup("of the program", [ValueError("one")])
    first = Scheduler(**options)

    async def serve_and_raise():
        async with first:
            with pytest.raises(NotServing, match="serves once"):
                await first.serve()
            assert (await first.run("numbers", {"n": 1})).state == "success"
            raise own

    with pytest.raises(ExceptionGroup) as raised:
        await serve_and_raise()
    assert raised.value is own
    with pytest.raises(NotServing, match="make another one"):
        async with first:
            pytest.fail("it has stopped")
    async with Scheduler(**options) as second:
        assert (await second.run("numbers", {"n": 1})).state == "success"


DAILY = """
    from asynsched import DAG, EmptyOperator

    with DAG("every_day", schedule="@daily"):
        EmptyOperator(task_id="only")
"""


async def test_a_simulation_reads_the_database_that_the_program_has_opened(program, tmp_path):
    program.write(DAILY, "daily.py")
    database = await open_database(f"sqlite:///{tmp_path / 'mine.db'}")
    async with Scheduler(database=database, **program.options()) as scheduler:
        await scheduler.run("numbers", {"n": 1})
        client = scheduler.client()
        start = datetime(2026, 2, 1, tzinfo=UTC)
        found = await client.simulate(start=start, end=start + timedelta(days=2))
        assert {run.dag_id for run in found.runs} == {"every_day"}
        await client.pause("every_day")
        assert (await client.simulate(start=start, end=start + timedelta(days=2))).runs == ()
    await database.close()


async def test_a_process_that_the_program_has_forked_does_not_keep_the_home(program):
    async with Scheduler(**program.options()):
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        forked.start()
    try:
        async with Scheduler(**program.options()) as scheduler:
            assert (await scheduler.run("numbers", {"n": 1})).state == "success"
    finally:
        forked.kill()
        forked.join()


async def fail_with_a_bug(*_):
    raise RuntimeError("a bug")


async def test_an_author_s_timetable_names_runs_that_are_triggered_without_a_name(program):
    later = {"run_after": datetime(2199, 1, 1, tzinfo=UTC), "has_logical_date": False}
    async with Scheduler(**program.options()) as scheduler:
        client, year = scheduler.client(), datetime.now(UTC).year
        made = [
            await scheduler.trigger("names_runs", logical_date=datetime(2020, 1, 1, tzinfo=UTC)),
            await client.trigger("names_runs", logical_date=datetime(2021, 1, 1, tzinfo=UTC)),
            await scheduler.trigger("names_runs", **later),
            await client.trigger("names_runs", **later),
            await client.trigger("names_runs", run_id="mine"),
        ]
        [asset] = (await client.list_assets(pattern="named")).items
        made.append(await client.materialize(asset.id))
        assert [key.run_id for key in made] == [
            f"manual.{year}.2", f"manual.{year}.2_2", "manual.2199.no", "manual.2199.no_2", "mine",
            f"asset_materialization.{year}.2",
        ]  # fmt: skip


STEPS = """
    from asynsched import DAG, DagRunInfo, Timetable, Variable

    DAYS = int(Variable.get("days", "9"))

    class Steps(Timetable):
        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            last = last_automated_data_interval
            start = restriction.earliest if last is None else last.end
            return DagRunInfo.interval(start, start.add(days=DAYS)) if start else None

    steps = DAG("steps", schedule=Steps())
"""


async def test_a_timetable_that_is_asked_reads_the_variables_of_the_program_s_own_database(program):
    program.write(STEPS)
    keys = keys_of(Settings(home=str(program.root / "home")))
    database = await open_database(f"sqlite:///{program.root / 'own.db'}", keys=keys)
    async with Scheduler(database=database, **program.options()) as scheduler:
        client = scheduler.client()
        await scheduler.trigger("steps", has_logical_date=False)  # waits until the file is read
        await client.set_variable("days", "2")
        planned = await client.plan_backfill(
            "steps", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)
        )
        assert [date.logical_date.day for date in planned] == [1, 3]
    await database.close()


async def test_a_client_of_the_scheduler_triggers_a_dag_before_the_folder_is_read(program):
    async with Scheduler(**program.options()) as scheduler:
        client = scheduler.client()
        run = await client.wait_run(await client.trigger("own_timetable"))
        assert (run.state, (run.data_interval_end - run.data_interval_start).days) == ("success", 2)
        assert (await client.health()).status == "healthy"
        [task] = (await client.list_tasks(*run.key)).items
        assert (await client.get_xcom(task.key)).value == 2
        planned = await client.plan_backfill(
            "own_timetable", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)
        )
        assert [date.logical_date.day for date in planned] == [1, 3]
        [serving] = await client.list_schedulers()
        assert (serving.id, serving.state) == (scheduler.scheduler_id, "serving")
        [act] = (await client.list_audit(action="dag.trigger")).items
        assert act.actor == "program"


async def test_a_failed_run_is_returned_with_its_reasons(scheduler):
    async with running(scheduler):
        run = await scheduler.run("fails")
    assert run.state == "failed"
    assert "ValueError: no way" in run.tasks[0].reason


async def test_a_program_clears_marks_and_cancels_runs(scheduler, program, monkeypatch):
    monkeypatch.setenv("HANGS", str(program.hangs))
    async with running(scheduler):
        hanging = await scheduler.trigger("waits")
        await eventually(program.hanging_pid, "the task runs")
        await scheduler.cancel_run(tuple(hanging))  # a plain pair will do
        failed = await scheduler.trigger("fails")
        await scheduler.wait_runs(2)
        await eventually(lambda: not psutil.pid_exists(program.hanging_pid()), "the cancelled task is gone")
        assert [task.task_id for task in await scheduler.mark_tasks(failed, ["broken"], "success")] == ["broken"]
        await scheduler.clear_tasks(failed)
        await scheduler.wait_runs(3)
        database = scheduler._database
        [again] = await database.read(load_task_instances, (await database.read(get_run, *failed)).id)
        assert (again.state, again.try_number) == ("failed", 2)
        await scheduler.mark_run(failed, "success")
        assert (await database.read(get_run, *failed)).state == "success"
        with pytest.raises(NotFound, match="broken"):
            await scheduler.clear_tasks(failed, ["brokn"])
        with pytest.raises(TypeError, match=r"\['broken'\], and not a text"):
            await scheduler.clear_tasks(failed, "broken")
        with pytest.raises(AsynschedError, match="has already ended"):
            await scheduler.cancel_run(hanging)


async def test_what_cannot_be_triggered_says_why(scheduler):
    async with running(scheduler):
        with pytest.raises(NotFound, match="Did you mean numbers"):
            await scheduler.trigger("number")
        with pytest.raises(DagError, match="param 'n'"):
            await scheduler.trigger("numbers", conf={"n": -1})
        for conf in ([1], {1: 2}, {"n": object()}, {"n": float("nan")}, {"n": "\ud800"}):
            with pytest.raises(DagError, match="'numbers'"):
                await scheduler.trigger("numbers", conf=conf)
        await scheduler.trigger("numbers", run_id="one")
        with pytest.raises(AlreadyExists, match="'one'"):
            await scheduler.trigger("numbers", run_id="one")
        # It would be in the way of the run that is due then.
        with pytest.raises(DagError, match="reserved for runs that the scheduler creates"):
            await scheduler.trigger("numbers", run_id="scheduled__2026-01-01T00:00:00+00:00")


async def test_a_dag_can_be_run_before_its_folder_is_read_for_the_first_time(scheduler):
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        with anyio.fail_after(30):
            assert (await scheduler.run("numbers")).state == "success"
            with pytest.raises(NotFound, match="Did you mean numbers"):
                await scheduler.trigger("number")
        scheduler.request_stop()


def test_arguments_of_a_scheduler_override_its_settings_and_are_checked(tmp_path):
    settings = Settings(home="elsewhere", parallelism=3, shutdown_grace=7)
    found = Scheduler(dags=tmp_path, home=tmp_path / "home", parse_processes=5, settings=settings).settings
    assert (found.dags_path, found.home_path) == (tmp_path, tmp_path / "home")
    assert (found.parallelism, found.parse.processes, found.shutdown_grace) == (3, 5, 7)
    with pytest.raises(SettingsError, match="parallelism: Expected `int` >= 1"):
        Scheduler(parallelism=0)
    with pytest.raises(TypeError, match="database must be a URL"):
        Scheduler(database=tmp_path / "mine.db")
    with pytest.raises(TypeError, match="executor must be a name"):
        Scheduler(executor=["celery"])
    with pytest.raises(TypeError, match="dags must be the path of a folder"):
        Scheduler(dags=[DAG("d")])
    with pytest.raises(TypeError, match="clock must be a Clock"):
        Scheduler(clock=time)


def test_a_scheduler_keeps_its_folders_where_the_program_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Scheduler(dags="dags", home="home", database="sqlite:///a.db").settings
    monkeypatch.chdir("/")
    assert (settings.dags_path, settings.home_path) == (tmp_path / "dags", tmp_path / "home")
    assert settings.database_url == f"sqlite:///{tmp_path / 'a.db'}"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("paralelism", "Did you mean 'parallelism'?"),
        ("shutdown_grace", "settings=Settings(shutdown_grace=…)"),
        ("qwerty", "It has dags, database, executor, home,"),
    ],
)
def test_an_unknown_argument_of_a_scheduler_says_what_was_meant(name, answer):
    with pytest.raises(TypeError, match=re.escape(answer)):
        Scheduler(**{name: 1})


@pytest.mark.parametrize(
    ("group", "name", "answer"),
    [
        (Settings, "parallelsm", "Settings has no setting 'parallelsm'. Did you mean parallelism=…?"),
        (Settings, "parse_timeout", "Did you mean parse=ParseSettings(timeout=…)?"),
        (LeaseSettings, "graze", "LeaseSettings has no setting 'graze'. Did you mean grace=…?"),
        (Settings, "qwerty", "Settings has no setting 'qwerty'."),
    ],
)
def test_a_misspelt_setting_names_the_nearest_one(group, name, answer):
    with pytest.raises(TypeError, match=re.escape(answer)):
        group(**{name: 1})


def test_settings_of_another_kind_are_refused_with_what_they_should_be():
    with pytest.raises(TypeError, match=r"settings=Settings\(parallelism=8\), not \{'parallelism': 3\}"):
        Scheduler(settings={"parallelism": 3})
    with pytest.raises(SettingsError, match=r"parse: must be ParseSettings\(…\), not \{'processes': 1\}"):
        Settings(parse={"processes": 1})


async def test_a_date_without_a_zone_is_in_that_of_the_setting(program):
    async with Scheduler(**program.options(default_timezone="Europe/Berlin")) as scheduler:
        run = await scheduler.run("numbers", {"n": 1}, logical_date=datetime(2026, 1, 31, 1))
        assert run.logical_date == datetime(2026, 1, 31, tzinfo=UTC)


async def test_a_caller_that_waits_for_a_dag_to_be_read_learns_of_the_stop(scheduler, program):
    program.write("dag = 'asynsched'\nwhile True: pass\n", "slow.py")
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)

        async def wait_for_what_is_not_there():
            with pytest.raises(NotServing, match="has stopped"):
                await scheduler.run("number")

        with anyio.fail_after(30):
            assert (await scheduler.run("numbers")).state == "success"
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(wait_for_what_is_not_there)
                scheduler.request_stop()


async def test_cancelling_the_waiting_caller_cancels_the_run_and_kills_its_task(scheduler, program):
    async with running(scheduler):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run, "waits")
            pid = await eventually(program.hanging_pid, "the task hangs")
            tasks.cancel_scope.cancel()
        with anyio.fail_after(30):
            await scheduler.wait_runs(1)
        await eventually(lambda: not psutil.pid_exists(pid), "the task is gone")


async def test_a_cancelled_caller_ends_no_run_that_another_has_created(scheduler):
    async with running(scheduler):
        await scheduler.trigger("waits", run_id="mine")
        waiting = asyncio.create_task(scheduler.run("waits", run_id="mine"))
        for _ in range(2):
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.wait([waiting])
        await eventually(lambda: not scheduler._left, "the other creation has failed")
        await scheduler.run("numbers", {"n": 1})
        assert (await scheduler.client().get_run(DagRunKey("waits", "mine"))).state != "failed"
        await scheduler.cancel_run(DagRunKey("waits", "mine"))


async def test_cancelling_serve_leaves_no_process_behind(scheduler, program):
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        await scheduler.trigger("waits")
        pid = await eventually(program.hanging_pid, "the task hangs")
        tasks.cancel_scope.cancel()
    assert program.processes() == []
    assert not psutil.pid_exists(pid)


async def test_a_second_scheduler_on_the_same_home_is_refused(scheduler):
    async with running(scheduler):
        with pytest.raises(HomeInUse, match=r"another home: .* Settings\(home=…\) in a program"):
            await Scheduler(settings=scheduler.settings).serve()


async def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="nowhere"):
        await Scheduler(dags=tmp_path / "nowhere", settings=Settings(home=str(tmp_path / "home"))).serve()


async def test_the_hosts_signal_handlers_and_logging_stay_as_they_are(scheduler):
    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), logging.getLogger().handlers[:])
    async with running(scheduler):
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before[:2]
    assert logging.getLogger().handlers == before[2]


async def test_a_program_says_that_an_asset_was_updated(scheduler):
    async with anyio.create_task_group() as tasks:
        await tasks.start(scheduler.serve)
        with anyio.fail_after(30):
            await scheduler.asset_changed("s3://shop/orders", {"rows": 5})
            await scheduler.wait_runs(1)
            await scheduler.asset_changed(Asset("orders", "s3://shop/orders"), extra={"rows": 6})
            await scheduler.wait_runs(2)
            await scheduler.asset_changed(Asset("nobody's"))
            with pytest.raises(NotFound, match="order"):
                await scheduler.asset_changed("order")
            with pytest.raises(DagError, match="is not JSON"):
                await scheduler.asset_changed("orders", {"rows": object()})
            runs = await scheduler._database.read(list_runs, dag_id="follows")
            results = [await scheduler._database.read(get_xcoms, run.id, key="return_value") for run in runs]
        scheduler.request_stop()
    assert [result.value for [result] in results] == [b"[6]", b"[5]"]


async def test_the_entry_points_of_packages_are_read_once_and_by_a_thread(program, monkeypatch):
    program.write("")
    read: list[tuple[str, int]] = []
    entry_points = importlib.metadata.entry_points

    def noted(*, group: str) -> Any:
        read.append((group, threading.get_ident()))
        return entry_points(group=group)

    monkeypatch.setattr(importlib.metadata, "entry_points", noted)
    getattr(entry_points_of_packages, "cache_clear", lambda: None)()
    options = program.options()
    async with anyio.create_task_group() as tasks:
        scheduler = Scheduler(**options)
        await tasks.start(scheduler.serve)
        await scheduler.wait_idle()
        scheduler.request_stop()
    groups = [group for group, _ in read if group in (plugins_manager.ENTRY_POINTS, policies.ENTRY_POINTS)]
    assert sorted(groups) == sorted({plugins_manager.ENTRY_POINTS, policies.ENTRY_POINTS})
    assert threading.get_ident() not in {thread for _, thread in read}


async def test_a_server_that_reloads_sees_no_file_that_the_guide_excludes(program, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs/how-to/embed.md").read_text()
    excluded = re.findall(r"--reload-exclude '([^']+)'", guide)
    monkeypatch.chdir(program.root)
    async with Scheduler(dags=program.dags, home=program.root / ".asynsched") as scheduler:
        await scheduler.run("numbers")
    copies = [*(program.root / ".asynsched").rglob("*.py")]
    is_watched = FileFilter(Config("app:app", reload=True, reload_excludes=excluded))
    assert copies
    assert not [path for path in (*copies, program.dags / "all.py") if is_watched(path)]
    assert is_watched(program.root / "app.py")
