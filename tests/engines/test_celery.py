"""What Celery promises of its workers holds for tries, and what it does not promise is made good."""

import json
import signal
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import anyio
import msgspec
import pytest
from sqlalchemy import select

from asynsched.errors import SettingsError
from asynsched.executors.engines import celery as engine
from asynsched.executors.engines.celery_app import TICKET, celery_app
from asynsched.protocol.worker_messages import Ticket
from asynsched.settings import CelerySettings
from asynsched.store.schema import ticket
from asynsched.worker import celery as pool
from tests.engines.sites import CelerySite
from tests.integration.remote.dags import DAGS, SAYS
from tests.support.waiting import eventually, eventually_true

QUEUES = (
    SAYS
    + """
    with DAG("ordered"):

        @task(queue="gpu")
        def usual():
            say("usual")

        @task(queue="gpu", priority_weight=100)
        def heavy():
            say("heavy")

        @task(executor_config={"queue": "gpu", "priority": 9})
        def first():
            say("first")

        @task(executor_config={"queue": "gpu", "priority": 10})
        def wrong():
            pass

        usual(), heavy(), first(), wrong()

    with DAG("wide"):

        @task
        def wide(n):
            say(f"begins {n}")
            wait()

        wide.expand(n=[1, 2, 3])
"""
)


LONG = (
    SAYS
    + """
    with DAG("long"):

        @task
        def long(n):
            say(str(n))
            time.sleep(0.3)

        long.expand(n=list(range(24)))
"""
)

MIXED = """
    from asynsched import DAG, task

    with DAG("mixed"):

        @task(queue="gpu")
        def refused():
            pass

        @task
        def usual():
            pass

        refused(), usual()
"""


async def test_a_ticket_that_the_broker_delivers_again_starts_nothing(site: CelerySite):
    often = {"unacked_restore_interval": 0.5, "unacked_restore_throttle": 1}
    options = {"broker_transport_options": often if site.broker.name == "redis" else {}}
    site.celery = {"visibility_timeout": 1.0, "options": json.dumps(options)}
    site.program.write(DAGS)
    machine = site.machine("m1", "--concurrency", "1")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        # Redis after its visibility timeout, RabbitMQ after its consumer timeout: to either worker.
        other = site.machine("m2")
        await eventually(lambda: "ticket.refused" in machine.log + other.log, "it is delivered again")
        machine.kill_worker()
        machine.start()
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", machine.log + other.log
    assert site.said() == ["begins 1", "ends 1"]


async def test_queues_and_priorities_are_those_of_the_tasks(site: CelerySite, monkeypatch):
    monkeypatch.setattr(engine, "LOOK_SECONDS", 0.0)
    site.program.write(QUEUES)
    idle = site.machine("idle")
    await idle.until_ready()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("ordered")
        await eventually_true(scheduler._database, nobody_listens)
        assert "no worker listens on the queue gpu" in str(await scheduler.client().why(*key, "usual"))
        site.machine("m1", "--concurrency", "1", "-Q", "gpu")
        run = await site.end_of(scheduler, key)
    assert site.said() == ["first", "heavy", "usual"]
    states = {task.task_id: (task.state, task.reason) for task in run.tasks}
    assert states.pop("wrong") == ("failed", "the priority 10 of its executor_config is not within 0 and 9")
    assert {state for state, _ in states.values()} == {"success"}


def nobody_listens(conn) -> bool:
    sights = conn.scalars(select(ticket.c.sight))
    return any("no worker listens on the queue gpu; in the queue gpu since" in sight for sight in sights)


async def test_a_revoked_task_ends_its_try_and_no_secret_is_shown(site: CelerySite):
    site.program.write(DAGS)
    machine = site.machine("m1", "--concurrency", "1", "--loglevel", "DEBUG")
    app, events = site.app(), []
    async with site.serving() as scheduler, anyio.create_task_group() as watching:
        watching.start_soon(partial(anyio.to_thread.run_sync, capture, app, events, abandon_on_cancel=True))
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        (active,) = await eventually(lambda: (app.control.inspect().active() or {}).get(machine.node), "it answers")
        secret = next(
            msgspec.json.decode(file.read_bytes(), type=dict)["ticket"]["secret"]
            for file in (machine.home / "tickets").iterdir()
        )
        await eventually(lambda: any(event["type"] == "task-started" for event in events), "events are seen")
        received = next(event for event in events if event["type"] == "task-received")
        if site.broker.name == "rabbitmq":
            await eventually(lambda: "ticket.refused" in machine.log, "the broker has delivered it again")
        app.control.revoke(active["id"], terminate=True)
        await site.until_said("begins 2")  # the task has a retry
        site.let_go()
        run = await site.end_of(scheduler, key)
        watching.cancel_scope.cancel()
    assert run.state == "success"
    assert received["name"] == "waits.waits"
    assert received["args"].endswith("/waits try 1',)")
    assert site.said() == ["begins 1", "begins 2", "ends 2"]
    assert secret not in f"{active} {events} {machine.log}"
    assert secret not in repr(Ticket("t", secret, ()))
    assert "hunter2" not in machine.log


def capture(app, events) -> None:
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": events.append})
        receiver.capture(limit=None, timeout=None, wakeup=False)


async def test_a_warm_shutdown_waits_for_tries_and_a_cold_one_interrupts_them(site: CelerySite):
    site.program.write(DAGS)
    cold = site.machine("m1")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        await cold.until_stopped(signal.SIGQUIT)
        # An interrupted try does not count, and runs again at once, here on another machine.
        warm = site.machine("m2")
        await eventually(lambda: len(site.said()) == 2, "it begins again")
        warm.signal(signal.SIGTERM)
        await eventually(lambda: not site.app().control.ping([warm.node], timeout=0.5), "it takes no messages")
        assert warm.worker.poll() is None
        site.let_go()
        run = await site.end_of(scheduler, key)
        await eventually(lambda: warm.worker.poll() == 0, "it has stopped")
        app = site.app()
        with app.connection_for_read() as connection:
            assert waiting(connection.channel(), app) == 0, "all messages are acknowledged"
    assert run.state == "success"
    assert [line.split()[0] for line in site.said()] == ["begins", "begins", "ends"], cold.log


async def test_workers_are_replaced_one_after_another_while_a_fan_out_runs(site: CelerySite):
    site.program.write(LONG)
    machines = [site.machine(name, "--concurrency", "2") for name in ("m1", "m2")]
    async with site.serving() as scheduler:
        key = await scheduler.trigger("long")
        for number, machine in enumerate(machines, 1):
            await eventually(lambda: len(site.said()) >= 8 * number, "tasks run")  # noqa: B023 - called before the next
            assert await machine.until_stopped(signal.SIGTERM) == 0
            machine.start()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", machines[0].log + machines[1].log
    assert {task.try_number for task in run.tasks} == {1}
    assert sorted(site.said()) == sorted(f"{n}" for n in range(24))


async def test_a_worker_that_stops_while_no_scheduler_answers_leaves_tickets_to_others(site: CelerySite):
    site.program.write(QUEUES)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("wide")
        with site.app().connection_for_read() as connection:
            channel = connection.channel()
            await eventually(lambda: waiting(channel, site.app()) == 3, "they wait")
    lonely = site.machine("m1", "--concurrency", "2")
    await eventually(lambda: lonely.log.count("schedulers.unreachable") == 2, "two of them wait for a scheduler")
    assert await lonely.until_stopped(signal.SIGTERM) == 0
    site.let_go()
    async with site.serving() as scheduler:
        site.machine("m2")
        run = await site.end_of(scheduler, key)
    assert run.state == "success", lonely.log
    assert {task.try_number for task in run.tasks} == {1}
    assert sorted(site.said()) == ["begins 1", "begins 2", "begins 3"]


async def test_a_worker_that_cannot_keep_tickets_stops_and_leaves_them_to_others(site: CelerySite):
    site.program.write(QUEUES)
    broken = site.machine("m1", "--concurrency", "2")
    await broken.until_ready()
    (broken.home / "tickets").rmdir()
    (broken.home / "tickets").write_text("in the way")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("wide")
        await eventually(lambda: broken.worker.poll() not in (None, 0), "it has failed")
        site.machine("m2")
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", broken.log
    assert {task.try_number for task in run.tasks} == {1}
    assert "worker.failed" in broken.log


async def test_tries_of_a_killed_worker_keep_their_slots_in_the_next_one(site: CelerySite):
    site.program.write(DAGS)
    machine = site.machine("m1", "--concurrency", "1")
    async with site.serving() as scheduler:
        first = await scheduler.trigger("waits")
        await site.until_said("begins 1")
        machine.kill_worker()
        machine.start()
        await machine.until_ready()
        other = await scheduler.trigger("waits")
        inspect = site.app().control.inspect([machine.node])
        await eventually(
            lambda: len((inspect.reserved() or {}).get(machine.node, ())) == 1, "the other waits for a slot"
        )
        machine.signal(signal.SIGTERM)
        await eventually(lambda: not site.app().control.ping([machine.node], timeout=0.5), "it takes no messages")
        site.let_go()
        assert (await site.end_of(scheduler, first)).tasks[0].try_number == 1, "a warm shutdown waits for it"
        await eventually(lambda: machine.worker.poll() == 0, "it stops")
        assert site.said() == ["begins 1", "ends 1"]
        site.machine("m2")
        assert (await site.end_of(scheduler, other)).state == "success"


class Unending:
    """Tries that never end, for a pool that stops."""

    resumed = ()

    def __init__(self, n_running):
        self.n_running, self.seconds, self.interrupted_at = n_running, 0.0, None

    def now(self):
        self.seconds += 1.0
        return self.seconds

    def work(self, _ticket):
        return Future()

    def interrupt(self):
        self.interrupted_at = self.seconds


@pytest.mark.parametrize(("n_running", "is_cold"), [(0, False), (1, True)])
def test_a_warm_shutdown_ends_though_ends_cannot_be_stored_or_a_cold_one_follows(monkeypatch, n_running, is_cold):
    monkeypatch.setattr(pool, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(pool.state, "should_terminate", is_cold or None)
    app = SimpleNamespace(tries=Unending(n_running))
    one = pool.TicketPool(1, app=app)
    ticket = msgspec.to_builtins(Ticket("one", "secret", ()))
    args = ("name", "id", {TICKET: ticket})
    one.apply_async(None, args, callback=lambda _: None, accept_callback=lambda *_: None)
    one._drain(None)
    assert pool.LAST_SECONDS < app.tries.seconds < pool.LAST_SECONDS + 10
    assert (app.tries.interrupted_at is not None) is is_cold


async def test_no_worker_holds_back_a_try_that_another_could_run(site: CelerySite):
    site.program.write(QUEUES)
    machines = [site.machine("m1", "--concurrency", "1"), site.machine("m2", "--concurrency", "2")]
    for machine in machines:
        await machine.until_ready()
    async with site.serving() as scheduler:
        key = await scheduler.trigger("wide")
        await site.until_said("begins 1", "begins 2", "begins 3")
        site.let_go()
        assert (await site.end_of(scheduler, key)).state == "success"


async def test_a_broker_that_is_restarted_loses_nothing(site: CelerySite):
    site.program.write(QUEUES)
    machine = site.machine("m1", "--autoscale", "2,1")
    async with site.serving() as scheduler:
        key = await scheduler.trigger("wide")
        # Two of three: autoscaling has added a slot, and the third waits in the broker.
        await eventually(lambda: len(site.said()) == 2, "two have begun")
        # In a thread: meanwhile, the scheduler renews the leases of tries.
        await anyio.to_thread.run_sync(site.broker.stop)
        await anyio.to_thread.run_sync(site.broker.start)
        site.let_go()
        run = await site.end_of(scheduler, key)
        again = await scheduler.trigger("wide")
        assert (await site.end_of(scheduler, again)).state == "success"
    assert run.state == "success", machine.log
    assert sorted(site.said()) == sorted(2 * ["begins 1", "begins 2", "begins 3"])


async def test_a_message_that_the_broker_has_lost_is_noticed(site: CelerySite, monkeypatch):
    for name in ("LOOK_SECONDS", "MISSING_SECONDS"):
        monkeypatch.setattr(engine, name, 0.5)
    site.program.write(QUEUES)
    async with site.serving() as scheduler:
        key = await scheduler.trigger("wide")
        app = site.app()
        with app.connection_for_read() as connection:
            channel = connection.channel()
            await eventually(lambda: waiting(channel, app) == 3, "they wait")
            channel.queue_purge("default")
        site.machine("m1")
        site.let_go()
        run = await site.end_of(scheduler, key)
    assert run.state == "success"
    assert sorted(site.said()) == ["begins 1", "begins 2", "begins 3"]


def waiting(channel, app) -> int:
    return app.amqp.queues["default"](channel).queue_declare().message_count


async def test_a_queue_that_the_broker_refuses_fails_its_own_tasks_only(site: CelerySite):
    with site.app().connection_for_write() as connection:
        if site.broker.name == "redis":
            connection.default_channel.client.set("gpu", "no list")
        else:
            connection.channel().queue_declare("gpu", durable=True)  # without priorities
    site.program.write(MIXED)
    site.machine()
    async with site.serving() as scheduler:
        run = await scheduler.run("mixed")
    tasks = {task.task_id: task for task in run.tasks}
    assert tasks["usual"].state == "success"
    assert tasks["refused"].state == "failed"
    assert tasks["refused"].reason.startswith("Celery's broker does not take it: ")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "celery.broker_url: Celery needs a broker, such as redis://HOST/0 or amqp://USER@HOST/VHOST"),
        ("rediss3://me:hunter2@host/0", "celery.broker_url: No such transport: rediss3"),
        ("redis://me:hunter2@host:port/0", "celery.broker_url: "),
    ],
)
def test_a_wrong_broker_is_one_message(url, message):
    with pytest.raises(SettingsError) as caught:
        celery_app(CelerySettings(broker_url=url))
    assert str(caught.value).startswith(message)
    assert "hunter2" not in str(caught.value)
