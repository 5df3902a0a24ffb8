"""The database of the schedulers of one exploration: random DAGs, and pools that are too small for them.

There are a few of these, made once: to make one takes longer than to live through a seed.
"""

import sqlite3
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from asynsched import (
    DAG,
    Asset,
    BashOperator,
    BranchPythonOperator,
    EmptyOperator,
    ShortCircuitOperator,
    task_group,
)  # fmt: skip
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import ParsedDag, ParseReport, SerializedDag, SerializedRoute, SerializedTask
from asynsched.simulation.folder import NO_STAMP
from asynsched.store.dags.parse_results import DagDefaults, store_report
from asynsched.store.engines.opening import open_inline
from asynsched.store.engines.sqlite_connection import InlineDatabase
from asynsched.store.runs.pools import set_pool
from tests.support.simulated import report_of

START = datetime(2026, 1, 1, tzinfo=UTC)
N_WORLDS = 32
POOLS = {"default_pool": 6, "narrow": 2}
RULES = [
    "all_success", "all_success", "all_success", "all_done", "one_success", "one_failed", "none_failed", "all_failed",
    "none_failed_min_one_success", "none_skipped", "one_done", "always",
]  # fmt: skip
DECIDERS = [BranchPythonOperator, ShortCircuitOperator]
"""The kinds of tasks that decide which of the tasks after them run."""
FIRST = 3
"""The number of tasks of a DAG whose results may decide about others: there are others after them."""
EDITED = ("dag0", "dag1")
"""DAGs whose files people edit."""
N_VERSIONS = 3
"""Versions of such a DAG."""


class World(NamedTuple):
    """DAGs, and a database that holds them, to be copied.

    Attributes:
        dags: Each DAG's first version.
        versions: Of each DAG: those that its file has one after the other, with their hashes. A later one has more
            tasks.
        pools_with_deferred: The pools that count the slots of deferred tasks, too.
    """

    dags: dict[str, SerializedDag]
    versions: dict[str, list[tuple[str, SerializedDag]]]
    copy: sqlite3.Connection
    pools_with_deferred: frozenset[str]

    def restore(self) -> None:
        """Restore the database of this process to its initial state."""
        self.copy.backup(inline_database().connection.open())

    def task(self, dag_id: str, task_id: str) -> SerializedTask:
        """Return a task. It is the same in each version that has it."""
        _, newest = self.versions[dag_id][-1]
        return next(task for task in newest.tasks if task.task_id == task_id)

    def version(self, dag_id: str, version_hash: str | None) -> SerializedDag:
        """Return a version of a DAG; None: its first one."""
        return next(dag for found, dag in self.versions[dag_id] if version_hash in (None, found))


@cache
def inline_database() -> InlineDatabase:
    """Return the one database of this process. It is overwritten for each exploration: statements stay compiled."""
    return open_inline()


@cache
def _empty_copy() -> sqlite3.Connection:
    return _copy()


def _copy() -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:")
    inline_database().connection.open().backup(copy)
    return copy


def world(number: int, dag_id: str = "") -> World:
    """Return one of the worlds, or of those with some DAG."""
    numbers = _numbers_with(dag_id) if dag_id else range(N_WORLDS)
    return _world(numbers[number % len(numbers)])


@cache
def _numbers_with(dag_id: str) -> list[int]:
    return [number for number in range(N_WORLDS) if dag_id in _world(number).dags]


@cache
def _world(number: int) -> World:
    random = Random(f"world {number}")
    made = [_dag(random, f"dag{n}") for n in range(random.choice([1, 2, 2]))]
    if random.random() < 0.4:
        made.append(_scheduled_dag(random))
    if random.random() < 0.4:
        made += _asset_dags()
    if random.random() < 0.4:
        made.append(_deciding_dag(random))
    if random.random() < 0.4:
        made.append(_mapping_dag(random))
    if random.random() < 0.3:
        made.append(_mapped_deciding_dag(random))
    of_routes = Random(f"routes of world {number}")
    reports = [_routed(of_routes, report_of(dag)) for dag in made]
    database = inline_database()
    _empty_copy().backup(database.connection.open())
    defaults = DagDefaults(16, paused=False)
    for report in reports:
        database.connection.write(lambda conn, r=report: store_report(conn, r, NO_STAMP, now=START, defaults=defaults))
    with_deferred = frozenset([POOLS, ["narrow"], [], []][number % 4])
    for name, slots in POOLS.items():
        set_slots = partial(set_pool, name=name, slots=slots, include_deferred=name in with_deferred)
        database.connection.write(lambda conn, set_slots=set_slots: set_slots(conn))
    parsed = {report.dags[0].dag.dag_id: report.dags[0] for report in reports}
    versions = {dag_id: _versions(found) for dag_id, found in parsed.items()}
    return World({dag_id: found.dag for dag_id, found in parsed.items()}, versions, _copy(), with_deferred)


def _routed(random: Random, report: ParseReport) -> ParseReport:
    """Give the later tries of some tasks of a report's DAG a route of their own, as a policy does."""
    [parsed] = report.dags
    tasks = tuple(
        msgspec.structs.replace(task, routes=(_route(random, task), _route(random)))
        if task.retries and random.random() < 0.2
        else task
        for task in parsed.dag.tasks
    )
    dag = msgspec.structs.replace(parsed.dag, tasks=tasks)
    return msgspec.structs.replace(report, dags=(msgspec.structs.replace(parsed, dag=dag),))


def _route(random: Random, task: SerializedTask | None = None) -> SerializedRoute:
    if task is not None:
        return SerializedRoute(task.pool, task.pool_slots)
    return SerializedRoute(random.choice([*POOLS]), random.choice([1, 2]), priority_weight=random.choice([None, 9]))


def _versions(parsed: ParsedDag) -> list[tuple[str, SerializedDag]]:
    """Return the versions of a DAG: where people edit its file, each has one more task than the one before."""
    versions = [(parsed.version_hash, parsed.dag)]
    dag_id, dag = parsed.dag.dag_id, parsed.dag
    for number in range(1, N_VERSIONS if dag_id in EDITED else 1):
        with DAG(dag_id) as other:
            BashOperator(task_id=f"extra{number}", bash_command="true")
        dag = msgspec.structs.replace(dag, tasks=(*dag.tasks, *serialize_dag(other).tasks))
        versions.append((f"{dag_id} {number}".rjust(64, "0"), dag))
    return versions


def shout(context) -> None:
    """Stand in for a callback: no user code runs here."""


def _dag(random: Random, dag_id: str) -> DAG:
    options = {}
    if random.random() < 0.2:
        options["fail_fast"] = True
    elif random.random() < 0.2:
        options["dagrun_timeout"] = timedelta(seconds=random.choice([4, 20]))
    if random.random() < 0.4:
        options["on_success_callback"] = options["on_failure_callback"] = shout
    with DAG(
        dag_id, max_active_runs=random.choice([1, 2, 16]), max_active_tasks=random.choice([1, 2, 16]), **options
    ) as dag:
        share = random.choice([0.0, 0.6])
        tasks: list[Any] = []
        for n in range(random.randint(2, 6)):
            decides = n < FIRST and random.random() < share
            tasks.append(_task(random, tasks, fails_fast="fail_fast" in options, decides=decides))
        for n in range(1, len(tasks)):
            if random.random() < 0.8:
                upstream = random.sample(tasks[:n], random.choice([1, 1, 2]) if n > 1 else 1)
                upstream >> tasks[n]
    return dag


def _task(random: Random, before: list[Any], *, fails_fast: bool, decides: bool):
    name = f"t{len(before)}"
    rule = "all_success" if fails_fast else random.choice(RULES)
    if not decides and random.random() < 0.1:
        return EmptyOperator(task_id=name, trigger_rule=rule)
    options = {
        "task_id": name,
        "trigger_rule": rule,
        "retries": random.choice([0, 1, 2]),
        "retry_delay": timedelta(seconds=random.choice([0, 1, 5])),
        "pool": random.choice(["default_pool", "narrow"]),
        "pool_slots": random.choice([1, 1, 2]),
        "priority_weight": random.choice([1, 1, 5]),
    }
    if random.random() < 0.2:
        options["on_failure_callback"] = options["on_retry_callback"] = shout
    if random.random() < 0.15:
        options["max_active_tis_per_dag"] = 1
    if decides:
        return random.choice(DECIDERS)(python_callable=shout, **options)
    if random.random() < 0.2:
        results = [task.output for task in before if isinstance(task, BashOperator)]
        commands = random.choice([*results, ["a"] * random.randint(0, 3)])
        return BashOperator.partial(**options).expand(bash_command=commands)
    return BashOperator(bash_command="true", **options)


def _scheduled_dag(random: Random) -> DAG:
    catchup = random.random() < 0.5
    with DAG(
        "scheduled", schedule=timedelta(seconds=20), start_date=START, end_date=START + timedelta(seconds=60),
        catchup=True, max_active_runs=1 if catchup else 16,
    ) as dag:  # fmt: skip
        first = BashOperator(task_id="first", bash_command="true", retries=1, retry_delay=timedelta(seconds=1))
        # A task that depends on a failed past waits for a person, for ever: so this one never fails.
        last = BashOperator(
            task_id="last", bash_command="true", trigger_rule="all_done", retries=99, depends_on_past=catchup,
            retry_delay=timedelta(seconds=1),
        )  # fmt: skip
        first >> last
    return dag


def _deciding_dag(random: Random) -> DAG:
    """Return a DAG in which runs leave something out: before it begins, as it runs, or with what follows."""
    with DAG("deciding", max_active_runs=random.choice([1, 16])) as dag:
        others = [BashOperator(task_id=f"other{n}", bash_command="true") for n in range(2)]
        decide = random.choice(DECIDERS)(
            task_id="decide", python_callable=shout, retries=1, retry_delay=timedelta(seconds=1)
        )
        eager, patient, below, last = (
            BashOperator(
                task_id=name, bash_command="true", trigger_rule=random.choice(rules), retries=1,
                retry_delay=timedelta(seconds=5),
            )
            for name, rules in {
                "eager": ["one_success", "one_done", "always"],
                "patient": RULES,
                "below": ["all_done", "none_failed", "always"],
                "last": RULES,
            }.items()
        )  # fmt: skip
        [decide, others[0]] >> eager
        [decide, others[1]] >> patient
        decide >> BashOperator.partial(task_id="mapped").expand(bash_command=["a", "b"]) >> below >> last
    return dag


def _mapping_dag(random: Random) -> DAG:
    """Return a DAG of tasks that are mapped over results, one of them over those of another one's instances."""
    with DAG("mapping", max_active_runs=random.choice([1, 16])) as dag:
        options = {"retries": 1, "retry_delay": timedelta(seconds=1)}
        listed = BashOperator(task_id="list", bash_command="true", **options)
        other = BashOperator(task_id="other", bash_command="true", **options)
        rules = ["all_success", "all_success", "none_failed", "all_done", "one_success"]
        each = BashOperator.partial(task_id="each", trigger_rule=random.choice(rules), **options)
        each = each.expand(bash_command=listed.output)
        again = BashOperator.partial(task_id="again", trigger_rule=random.choice(rules), **options)
        again = again.expand(bash_command=each.output)
        last = BashOperator(task_id="last", bash_command="true", trigger_rule=random.choice(RULES))
        other >> each >> last
        again >> last
    return dag


def _mapped_deciding_dag(random: Random) -> DAG:
    """Return a DAG in which each instance of a mapped branch or short circuit decides by itself.

    One is mapped outside any group, so all its instances decide together about the same tasks. The other one is in a
    mapped group, so each of its instances decides about its own instance of the group. That group is mapped over a
    literal: while a result is run again, it is unknown which instances of a group belong together.
    """
    options = {"retries": 1, "retry_delay": timedelta(seconds=1)}
    patient = [rule for rule in RULES if rule != "always"]
    with DAG("mapped_deciding", max_active_runs=random.choice([1, 16])) as dag:
        listed = BashOperator(task_id="list", bash_command="true", **options)
        decide = random.choice(DECIDERS).partial(task_id="decide", python_callable=shout, **options)
        decide = decide.expand(op_args=random.choice([listed.output, [["a"], ["b"]]]))
        once = BashOperator(task_id="once", bash_command="true", trigger_rule=random.choice(RULES), **options)
        each = BashOperator.partial(task_id="each", trigger_rule=random.choice(patient), **options)
        each = each.expand(bash_command=random.choice([listed.output, ["a", "b"]]))
        decided = BashOperator.partial(task_id="decided", **options).expand(bash_command=decide.output)
        decide >> [once, each]

        @task_group
        def group(value: Any) -> None:
            inner = random.choice(DECIDERS)(task_id="inner", python_callable=shout, op_args=[value], **options)
            left, right, below = (
                BashOperator(task_id=name, bash_command="true", trigger_rule=random.choice(patient), **options)
                for name in ("left", "right", "below")
            )
            inner >> [left, right] >> below

        grouped = group.expand(value=["a", "b"])
        last = BashOperator(task_id="last", bash_command="true", trigger_rule=random.choice(RULES))
        [once, each, decided, grouped] >> last
    return dag


def _asset_dags() -> list[DAG]:
    table = Asset("table")
    with DAG("producer", max_active_runs=1) as producer:
        BashOperator(task_id="write", bash_command="true", outlets=[table], retries=1, retry_delay=timedelta(seconds=1))
    with DAG("consumer", schedule=[table], max_active_runs=1) as consumer:
        BashOperator(task_id="read", bash_command="true")
    return [producer, consumer]
