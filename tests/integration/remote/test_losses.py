"""What becomes of tries on other machines when something is lost: a scheduler, a worker, a machine, the way between."""

import re
import signal

import anyio
import pytest

from asynsched import Scheduler
from asynsched.keys import DagRunKey, TaskInstanceKey
from asynsched.queries.runs import list_callbacks
from asynsched.queries.try_logs import follow_log
from asynsched.results import FinishedRun
from asynsched.settings import CallbacksSettings
from tests.integration.remote.dags import CALLBACKS
from tests.integration.remote.machines import Machine, Site
from tests.support.waiting import DEADLINE_SECONDS, eventually, eventually_true

ONCE, TWICE = (CallbacksSettings(executor="far", attempts=attempts) for attempts in (1, 2))
on_postgresql = pytest.mark.parametrize("far_site", ["postgresql"], indirect=True)
"""For tests in which the database does not matter, or in which two schedulers share it."""


def assert_ran_once(site: Site, machine: Machine, run: FinishedRun) -> None:
    assert run.state == "success", machine.log
    assert site.said() == ["begins 1", "ends 1"], machine.log


async def log_of(scheduler: Scheduler, key: DagRunKey, try_number: int = 1) -> str:
    return (await scheduler.client().task_logs(TaskInstanceKey(*key, "waits"), try_number=try_number)).text


async def eventually_logged(scheduler: Scheduler, key: DagRunKey, line: str) -> None:
    """Wait until a line of the first try has come to the scheduler, as it does while the try runs."""
    with anyio.fail_after(DEADLINE_SECONDS):
        async for part in follow_log(scheduler._context(), TaskInstanceKey(*key, "waits"), 1, start=0):
            if line in part.text:
                return


def lines_of(log: str) -> list[str]:
    """Return the lines of the task's own output in its log."""
    return re.findall(r"line \d+$", log, re.MULTILINE)


@pytest.mark.parametrize("next_home", ["home", "other"])
async def test_tries_go_on_while_schedulers_come_and_go(far_site: Site, next_home: str):
    site = far_site
    machine = site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
    # The scheduler has stopped. Its lease is released: the next one takes the run up at once, of whichever home it is.
    site.lease = 60.0
    async with site.serving(next_home) as scheduler:
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert_ran_once(site, machine, run)


async def test_a_try_goes_on_when_its_scheduler_is_killed(far_site: Site):
    site = far_site
    machine = site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
    killed = site.start_scheduler()
    await site.until_served()
    killed.kill()
    killed.wait()
    # It ends while there is no scheduler: the worker reports that until one answers.
    site.let_go()
    await site.until_said("ends 1")
    async with site.serving() as scheduler:
        run = await site.end_of(scheduler, key)
    assert_ran_once(site, machine, run)


@on_postgresql
async def test_another_scheduler_adopts_the_tries_of_one_that_was_killed(far_site: Site):
    site = far_site
    machine = site.machine()
    killed = site.start_scheduler()
    await site.until_served()
    key = site.trigger("waits")
    async with site.serving("other", number=1) as scheduler:
        await site.until_said("begins 1")
        killed.kill()
        killed.wait()
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert_ran_once(site, machine, run)


@on_postgresql
async def test_the_next_worker_of_a_home_goes_on_with_the_tries_of_one_that_was_killed(far_site: Site):
    site = far_site
    machine = site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        await eventually_logged(scheduler, key, "line 1")
        machine.kill_worker()
        machine.start()
        site.let_go()
        run = await site.end_of(scheduler, key)
        assert lines_of(await log_of(scheduler, key)) == ["line 1", "line 2"]
        # A ticket that comes once more, and one that nobody knows, start nothing.
        assert_ran_once(site, machine, run)
        await machine.stop()


@on_postgresql
@pytest.mark.parametrize("loss", ["machine", "silence"])
async def test_a_try_of_a_lost_worker_runs_again_after_it_has_ended(far_site: Site, loss: str):
    site = far_site
    site.lease = 2.0
    machine = site.machine()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        await eventually_logged(scheduler, key, "line 1")
        if loss == "machine":
            machine.switch_off()
        else:
            machine.signal(signal.SIGSTOP)  # the worker renews nothing, and its keeper is left alone
        other = site.machine("m2")
        await site.until_said("begins 1", "begins 2")
        if loss == "silence":
            machine.signal(signal.SIGCONT)
            # Its late report of the end changes nothing.
            await eventually(lambda: "report" in machine.log or "lease" in machine.log, "it has come back")
        site.let_go()
        run = await site.end_of(scheduler, key)
        logs = [lines_of(await log_of(scheduler, key, try_number)) for try_number in (1, 2)]
    assert logs == [["line 1"], ["line 1", "line 2"]], "the log of a lost try stays, as far as it was written"
    assert run.state == "success", other.log
    assert site.said() == ["begins 1", "begins 2", "ends 2"]


@on_postgresql
@pytest.mark.parametrize("next_home", ["home", "other"])
async def test_a_callback_goes_on_while_schedulers_come_and_go(far_site: Site, next_home: str):
    site = far_site
    machine = prepare_calls(site)
    async with site.serving(callbacks=ONCE) as scheduler:
        key = await scheduler.trigger("calls")
        await site.until_said("called elsewhere")
        assert scheduler.running().n_callbacks == 0, "a stop does not wait for it"
    async with site.serving(next_home, callbacks=ONCE) as scheduler:
        site.let_go()
        await until_called(scheduler, key, attempts=1)
    assert site.said() == ["called elsewhere", "over"], machine.log


@on_postgresql
async def test_a_callback_of_a_lost_machine_runs_again_on_another(far_site: Site):
    site = far_site
    site.lease = 2.0
    machine = prepare_calls(site)
    async with site.serving(callbacks=TWICE) as scheduler:
        key = await scheduler.trigger("calls")
        await site.until_said("called elsewhere")
        machine.switch_off()
        other = site.machine("m2")
        await site.until_said("called elsewhere", "called elsewhere")
        site.let_go()
        await until_called(scheduler, key, attempts=2)
    assert site.said() == ["called elsewhere", "called elsewhere", "over"], other.log


def prepare_calls(site: Site) -> Machine:
    site.program.write(CALLBACKS)
    return site.machine()


async def until_called(scheduler: Scheduler, key: DagRunKey, *, attempts: int) -> None:
    """Wait until the callback of a run has ended well; it was begun this many times."""

    def has_ended(conn):
        return [(one.state, one.attempts) for one in list_callbacks(conn, key).items] == [("success", attempts)]

    await eventually_true(scheduler._database, has_ended)


@on_postgresql
async def test_what_an_engine_rejects_fails_with_its_reason(far_site: Site):
    site = far_site
    async with site.serving() as scheduler:
        run = await scheduler.run("rejected")
    assert (run.state, run.tasks[0].reason) == ("failed", "there is no queue of that name")


@on_postgresql
async def test_a_try_that_no_worker_claims_is_given_up(far_site: Site):
    site = far_site
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        (site.root / "sight").write_text("gone:the node has failed")
        with anyio.fail_after(60):
            run = await site.end_of(scheduler, key)
    assert run.state == "failed"
    assert run.tasks[0].reason == "the engine has ended its job, and no worker has claimed the try: the node has failed"
