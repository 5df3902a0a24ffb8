"""Tries on machines that share no disk with their scheduler, by networks that are cut, slow, or lose packets.

A machine here is namespaces of its own and a cable (tests/support/separation.py). Tasks note each moment at which they
run, by the clock that all of them have in common, and hold a lock, which the kernel releases when their process ends.
"""

import re
import signal
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from sqlalchemy import Connection, select

from asynsched.keys import TaskInstanceKey
from asynsched.lease.expiry import MARGIN_SECONDS
from asynsched.store.schema import ticket
from asynsched.store.tickets import CLAIMED
from tests.integration.remote.machines import FAR, LEASE, MARKS, Machine, Site
from tests.support.separation import BOTH, Network, require_separation
from tests.support.waiting import eventually, eventually_true

DAG_FILE = """
    import fcntl, os, pathlib, signal, time
    from datetime import timedelta
    from asynsched import DAG, Connection, Variable, task
    from prices import total

    FOLDER = pathlib.Path(os.environ.get("MARKS", "."))

    def say(text, file="said"):
        with (FOLDER / file).open("a") as file:
            file.write(text + "\\n")

    def run_until_let_go(ti):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lock = (FOLDER / f"lock {ti.task_id}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("not alone")
        say(f"{ti.task_id} begins {ti.try_number}")
        n = 0
        while not (FOLDER / "go").exists():
            print("line", n)
            n += 1
            say(f"{time.monotonic()}", f"moments {ti.task_id} {ti.try_number}")
            time.sleep(0.02)
        return n

    with DAG("adds"):

        @task
        def orders(ti=None):
            ti.xcom_push(key="currency", value="EUR")
            return [1, 2, 3, 4, 5, 6, 7, 8]

        @task
        def price(n):
            say(f"price {n}")
            print("the factor is", Variable.get("factor"))
            return n * int(Variable.get("factor"))

        @task
        def report(prices, ti=None):
            print("the password is", Connection.get("shop").password)
            text = (pathlib.Path(__file__).parent / "report.txt").read_text()
            seen = sorted(str(path.relative_to(FOLDER.parent)) for path in FOLDER.parent.glob("*"))
            currency = ti.xcom_pull(task_ids="orders", key="currency")
            return {"text": text.format(total(prices), currency), "seen": seen}

        report(price.expand(n=orders()))

    with DAG("lasts"):

        @task(retries=3, retry_delay=timedelta(0))
        def lasts(ti=None):
            return run_until_let_go(ti)

        lasts()

    with DAG("ends"):

        @task
        def silent(ti=None):
            n = run_until_let_go(ti)
            say("silent ends")
            return n

        @task
        def asks(ti=None):
            n = run_until_let_go(ti)
            say("asks asks")
            say(f"asks gets {Variable.get('factor')}")
            return n

        silent()
        asks()
"""
Loss = Literal["packets", "answers", "device", "packets, while the worker is stopped"]
END_SECONDS = LEASE["grace"] + LEASE["kill_time"]


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[Site]:
    require_separation()
    site = Site(tmp_path, None, FAR)
    monkeypatch.setenv(MARKS, str(site.marks))
    site.network = Network()
    write_files(site)
    yield site
    site.close()


def write_files(site: Site) -> None:
    """Write a DAG file, a module and a data file."""
    site.program.write(DAG_FILE)
    site.program.write("total = sum", "prices.py")
    site.program.write("{} {}", "report.txt")
    site.files = ("*.txt",)


def cut(machine: Machine, loss: Loss) -> float:
    """Cut a machine off; return when, on the tasks' clock."""
    assert machine.enclosure is not None
    at = time.monotonic()
    if loss == "device":
        machine.enclosure.switch_device("down")
    else:
        machine.enclosure.cable.cut = frozenset({"to machine"}) if loss == "answers" else BOTH
    if loss == "packets, while the worker is stopped":
        machine.signal(signal.SIGSTOP)
    return at


def mend(machine: Machine) -> None:
    """Undo a cut."""
    assert machine.enclosure is not None
    machine.signal(signal.SIGCONT)
    machine.enclosure.cable.cut = frozenset()
    machine.enclosure.switch_device("up")


def moments(site: Site, name: str) -> list[float]:
    """Return the moments at which a try is known to have run."""
    path = site.marks / f"moments {name}"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def keeps_tickets(machine: Machine) -> bool:
    return any((machine.home / "tickets").glob("*.json"))


async def test_a_machine_without_a_shared_disk_gets_all_that_tries_need(site: Site):
    for name in ("m1", "m2"):
        site.machine(name)
    async with site.serving() as scheduler, scheduler.client() as client:
        await client.set_variable("factor", "10")
        await client.add_connection("shop", {"conn_type": "http", "password": "hunter2-hunter2"})
        run = await scheduler.run("adds")
        log = await client.task_logs(TaskInstanceKey("adds", run.run_id, "report"))
    assert run.state == "success", [(task.task_id, task.reason) for task in run.tasks]
    (report,) = [task.result for task in run.tasks if task.task_id == "report"]
    assert report["text"].strip() == "360 EUR"
    own = {"dags", "home"}
    assert own <= {path.name for path in site.root.iterdir()}
    assert own.isdisjoint(report["seen"]), "it sees no file of the scheduler"
    assert sorted(site.said()) == sorted(f"price {n}" for n in range(1, 9))
    assert "the password is ***" in log.text
    assert "hunter2" not in log.text


@pytest.mark.parametrize("loss", ["packets", "answers", "device", "packets, while the worker is stopped"])
async def test_a_try_on_a_machine_that_is_cut_off_ends_in_time_and_runs_again_only_then(site: Site, loss: Loss):
    site.lease = 4.0
    machine = site.machine("m1")
    async with site.serving() as scheduler, scheduler.client() as client:
        key = await scheduler.trigger("lasts")
        await site.until_said("lasts begins 1")
        ((token, n),) = (await eventually_true(scheduler._database, claimed)).items()
        await eventually_true(scheduler._database, lambda conn: claimed(conn)[token] > n)
        cut_at = cut(machine, loss)
        other = site.machine("m2")
        await eventually_true(scheduler._database, lambda conn: token not in claimed(conn))
        given_up_at = time.monotonic()
        await eventually_true(scheduler._database, lambda conn: {*conn.scalars(select(ticket.c.token))} - {token})
        mend(machine)
        await site.until_said("lasts begins 2")
        site.let_go()
        run = await site.end_of(scheduler, key)
        first, _ = (await client.list_tries(TaskInstanceKey(*key, "lasts"))).tries
        await eventually(lambda: not keeps_tickets(machine), "the end of the first try is reported, and refused")
    assert run.state == "success", machine.log + other.log
    assert site.said() == ["lasts begins 1", "lasts begins 2"]
    assert "its worker has not renewed its lease for" in first.reason
    ran, ran_again = moments(site, "lasts 1"), moments(site, "lasts 2")
    # The last lease began just before the cut. The scheduler waits for a margin beyond the time that is stated.
    assert cut_at < ran[-1] < cut_at + site.lease + END_SECONDS + MARGIN_SECONDS
    assert given_up_at > max(cut_at + site.lease + END_SECONDS, ran[-1])
    assert ran_again[0] > ran[-1]


@pytest.mark.parametrize("loss", ["packets", "device"])
async def test_a_try_outlasts_a_cut_shorter_than_its_lease_and_its_end_is_reported_late(site: Site, loss: Loss):
    site.lease = 60.0
    machine = site.machine()
    async with site.serving() as scheduler, scheduler.client() as client:
        await client.set_variable("factor", "10")
        key = await scheduler.trigger("ends")
        await site.until_said("silent begins 1", "asks begins 1")
        cut_at = cut(machine, loss)
        await eventually(lambda: moments(site, "silent 1")[-1:] > [cut_at + 2.0], "it runs on for a while")
        site.let_go()
        await site.until_said("silent ends", "asks asks")
        assert (await client.get_task(TaskInstanceKey(*key, "silent"))).state != "success", "its end is not known yet"
        mend(machine)
        run = await site.end_of(scheduler, key)
        logs = {task.task_id: await client.task_logs(TaskInstanceKey(*key, task.task_id)) for task in run.tasks}
    assert run.state == "success", machine.log
    assert sorted(site.said()) == ["asks asks", "asks begins 1", "asks gets 10", "silent begins 1", "silent ends"]
    for task in run.tasks:
        lines = re.findall(r"line (\d+)$", logs[task.task_id].text, re.MULTILINE)
        assert lines == [str(n) for n in range(task.result)], "the log is whole"


async def test_a_slow_network_that_loses_packets_neither_loses_nor_doubles_a_try(site: Site):
    for name in ("m1", "m2"):
        enclosure = site.machine(name).enclosure
        assert enclosure is not None
        enclosure.cable.delay_seconds, enclosure.cable.loss = 0.1, 0.05
    async with site.serving() as scheduler, scheduler.client() as client:
        await client.set_variable("factor", "10")
        await client.add_connection("shop", {"conn_type": "http", "password": "hunter2-hunter2"})
        run = await scheduler.run("adds")
        logs = [
            await client.task_logs(TaskInstanceKey("adds", run.run_id, "price", map_index)) for map_index in range(8)
        ]
    assert run.state == "success", [(task.task_id, task.reason) for task in run.tasks]
    assert {task.try_number for task in run.tasks} == {1}
    assert sorted(site.said()) == sorted(f"price {n}" for n in range(1, 9))
    assert [log.text.count("the factor is 10") for log in logs] == [1] * 8
    assert sum(cable.n_lost for cable in site.network.cables) > 0


def claimed(conn: Connection) -> dict[str, int]:
    """Return how often the leases of tries were renewed that a worker has, by their tokens."""
    query = select(ticket.c.token, ticket.c.renewals).where(ticket.c.state == CLAIMED)
    return {row.token: row.renewals for row in conn.execute(query)}
