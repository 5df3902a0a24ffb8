"""Readers of the page: what 100 open tabs and 50 requests a second cost the tasks, and an idle scheduler.

A hop takes longer beside any process that works, whatever that does: processors share caches, and often a core. So hops
are measured beside strangers, too: two processes that take as much CPU time as the readers and the page.
"""

import asyncio
import multiprocessing
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier, Event

import httpx
import psutil

from tests.benchmarks.measuring import Sheet, at_most, percentile
from tests.benchmarks.systems import Client, Ours, cpu_seconds
from tests.benchmarks.workloads.running import chain_text, hops, timed_runs
from tests.support.up import words_of

N_TABS = 100
REQUESTS_A_SECOND = 50
N_TASKS = 30
ROUNDS = 3
"""The hops alone and those beside readers are measured in turn."""
IDLE_SECONDS = 20
SETTLE_SECONDS = 5
READY_SECONDS = 60
BURN_SECONDS = 0.01
VIEWS = ("", "dags", "dags/chain", "runs", "tasks", "api/asynsched/v1/runs", "api/v2/dags", "api/v2/monitor/health")
LINK = re.compile(r"(http://\S+/)login\?key=(\S+)")


def hops_beside_tabs(system: Ours, sheet: Sheet) -> None:
    """Hops of a chain, alone and beside the readers; then the CPU time of an idle scheduler, without and with tabs."""
    system.site.env["ASYNSCHED_WEB__LISTEN"] = "127.0.0.1:0"
    system.write("chain.py", chain_text(N_TASKS))
    alone: list[float] = []
    beside: list[float] = []
    beside_strangers: list[float] = []
    with system.serving() as client:

        def some_hops() -> list[float]:
            return hops(timed_runs(system, client, ["chain"], N_TASKS))

        url, cookies = signed_in(system, client)
        for _ in range(ROUNDS):
            alone += some_hops()
            with _readers(url, cookies, REQUESTS_A_SECOND) as reader:
                [page] = [one for one in system.processes() if "asynsched.cli.page_process" in words_of(one)]
                used, since = cpu_seconds([reader]), time.monotonic()
                used_by_page = cpu_seconds([page])
                beside += some_hops()
                seconds = time.monotonic() - since
                shares = [(cpu_seconds([reader]) - used) / seconds, (cpu_seconds([page]) - used_by_page) / seconds]
            with _stranger(shares[0]), _stranger(shares[1]):
                beside_strangers += some_hops()
        idle = _idle_share(system)
        with _readers(url, cookies, 0):
            watched = _idle_share(system)
    sheet.seconds("hop alone, p95", percentile(alone, 0.95))
    sheet.seconds(f"hop beside {N_TABS} tabs and {REQUESTS_A_SECOND} requests a second, p95", percentile(beside, 0.95))
    sheet.amount("beside readers, to alone", percentile(beside, 0.95) / percentile(alone, 0.95), "times", at_most(1.1))
    strangers = percentile(beside_strangers, 0.95)
    sheet.amount("beside two strangers, to alone", strangers / percentile(alone, 0.95), "times")
    sheet.amount("beside readers, to beside strangers", percentile(beside, 0.95) / strangers, "times")
    sheet.amount("CPU of the readers, of one core", shares[0] * 100, "%")
    sheet.amount("CPU of the page, of one core", shares[1] * 100, "%")
    sheet.amount("idle, CPU of one core", idle, "%")
    sheet.amount(f"added by {N_TABS} idle tabs", watched - idle, "%", at_most(1))


def signed_in(system: Ours, client: Client) -> tuple[str, dict[str, str]]:
    """Return the page's address, and the cookies of the session that the printed link begins."""
    log = system.site.logs[-1]
    client.wait_until(lambda: LINK.search(log.read_text()) is not None, "the link is printed")
    found = LINK.search(log.read_text())
    assert found is not None
    with httpx.Client(base_url=found[1], timeout=READY_SECONDS) as browser:
        assert browser.get("login", params={"key": found[2]}).status_code == httpx.codes.SEE_OTHER
        return found[1], dict(browser.cookies)


@contextmanager
def _stranger(share: float) -> Iterator[None]:
    """Take a share of one core until the end of the block, in a process that has nothing to do with asynsched."""
    process = multiprocessing.get_context("spawn").Process(target=_burn, args=(share,), daemon=True)
    process.start()
    yield
    process.terminate()
    process.join(READY_SECONDS)


def _burn(share: float) -> None:
    busy = min(share, 1) * BURN_SECONDS
    while True:
        until = time.perf_counter() + busy
        while time.perf_counter() < until:
            pass
        time.sleep(BURN_SECONDS - busy)


def _idle_share(system: Ours) -> float:
    """Return the CPU time of the scheduler's processes while nothing happens, in percent of one core."""
    time.sleep(SETTLE_SECONDS)  # the work of the runs before is over
    processes = system.processes()
    before = cpu_seconds(processes)
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds(processes) - before) / IDLE_SECONDS * 100


@contextmanager
def _readers(url: str, cookies: dict[str, str], a_second: int) -> Iterator[psutil.Process]:
    """Read as browsers do until the end of the block, in a process of its own. It ends with an error if one failed."""
    context = multiprocessing.get_context("spawn")
    ready, is_over = context.Barrier(2), context.Event()
    process = context.Process(target=_read, args=(url, cookies, a_second, ready, is_over), daemon=True)
    process.start()
    ready.wait(READY_SECONDS)
    yield psutil.Process(process.pid)
    is_over.set()
    process.join(READY_SECONDS)
    assert process.exitcode == 0, "a reader of the page failed"


def _read(url: str, cookies: dict[str, str], a_second: int, ready: Barrier, is_over: Event) -> None:
    asyncio.run(_read_until(url, cookies, a_second, ready, is_over))


async def _read_until(url: str, cookies: dict[str, str], a_second: int, ready: Barrier, is_over: Event) -> None:
    limits = httpx.Limits(max_connections=None)
    timeout = httpx.Timeout(READY_SECONDS, read=None)
    opened = asyncio.Semaphore(0)

    async def follow(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "api/asynsched/v1/events") as answer:
            answer.raise_for_status()
            opened.release()
            async for _ in answer.aiter_raw():
                pass

    async def ask(client: httpx.AsyncClient, view: str) -> None:
        (await client.get(view, headers={"accept": "text/html, */*"})).raise_for_status()

    async with httpx.AsyncClient(base_url=url, cookies=cookies, limits=limits, timeout=timeout) as client:
        following = [asyncio.create_task(follow(client)) for _ in range(N_TABS)]
        for _ in following:
            await asyncio.wait_for(opened.acquire(), READY_SECONDS)
        await asyncio.to_thread(ready.wait, READY_SECONDS)
        asking: list[asyncio.Task[None]] = []
        over = asyncio.create_task(asyncio.to_thread(is_over.wait))
        while a_second and not over.done():
            asking.append(asyncio.create_task(ask(client, VIEWS[len(asking) % len(VIEWS)])))
            await asyncio.wait([over], timeout=1 / a_second)
        await over
        await asyncio.gather(*asking)
        assert not any(task.done() for task in following), "a stream of events ended"
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
