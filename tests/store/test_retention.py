"""Old data is deleted in small batches, with everything that belongs to it; data that is still needed stays."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, update
from structlog.testing import capture_logs

from asynsched.clock import Clock
from asynsched.errors import LogStoreUnavailable
from asynsched.executors.log_archive import LogArchive
from asynsched.executors.log_paths import log_path
from asynsched.executors.log_removal import remove_unwanted
from asynsched.executors.store_calls import StoreCalls
from asynsched.home import SOURCES, prepare_home
from asynsched.housekeeping.retention import RetentionPolicy, Sweep, policy_of
from asynsched.keys import TaskInstanceKey
from asynsched.protocol.messages import SourceRef
from asynsched.service import Pulse
from asynsched.settings import RetentionSettings
from asynsched.states import DagRunState
from asynsched.store.audit import count_old_audit, record_audit
from asynsched.store.dags.dags import add_versions, count_unused_versions, put_sources
from asynsched.store.database import Database
from asynsched.store.runs.callbacks import finish_callback, next_callbacks
from asynsched.store.runs.dag_runs import end_queued_run, insert_run, list_runs
from asynsched.store.runs.deadlines import decide_due_deadlines
from asynsched.store.runs.retention import Bound, count_old_runs, count_old_xcoms, delete_runs, old_runs
from asynsched.store.runs.transitions import Batch, RenderedFieldsWrite, apply
from asynsched.store.runs.xcoms import put_xcom
from asynsched.store.schema import (
    CallbackRequest,
    DagVersionRow,
    TaskStateRow,
    XComRow,
    callback_request,
    dag,
    dag_run,
    deadline,
    rendered_fields,
    source,
    task_instance,
    task_instance_history,
    task_state_store,
    xcom,
)
from asynsched.store.state_stores import count_old_states, put_task_state
from tests.store.test_runs import history, new_run, task
from tests.support.stored import list_audit, list_versions, log_file

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
STRANGE = "manual__ünd/../x" + "y" * 220


def add_dag(conn: Connection, dag_id: str) -> None:
    conn.execute(dag.insert(), {"dag_id": dag_id, "file_path": "a.py", "max_active_runs": 1, "updated_at": NOW})


def add_run(
    conn: Connection, dag_id: str, day: int, *, n_tasks: int = 1, active: bool = False, **fields: object
) -> int:
    """Store a run that ended `day` days before now, with tasks, earlier tries, rendered fields and XComs."""
    at = NOW - day * DAY
    run_id = fields.pop("run_id", f"r{day}")
    run = insert_run(conn, new_run(run_id, dag_id, **{"logical_date": at, "run_after": at} | fields))
    tasks = [task(run, f"t{n:03}", "success") for n in range(n_tasks)]
    tries = [history(run, row.task_id) for row in tasks]
    rendered = [RenderedFieldsWrite(run, row.task_id, -1, 1, '{"command": "ls"}') for row in tasks]
    apply(conn, Batch(0, new_tasks=tasks, history=tries, rendered=rendered))
    for row in tasks:
        put_xcom(conn, XComRow(run, row.task_id, -1, "return_value", b"1", at))
    if not active:
        end_queued_run(conn, run, DagRunState.SUCCESS, "", at)
    return run


async def with_runs(database: Database, *days: int) -> list[int]:
    """Store a DAG, and for each number of days a run of it that ended that long ago."""

    def prepare(conn: Connection) -> list[int]:
        add_dag(conn, "d")
        return [add_run(conn, "d", day) for day in days]

    return await database.write(prepare)


def write_log(home: Path, run_id: str) -> Path:
    log = log_file(home, TaskInstanceKey("d", run_id, "t000"), 1)
    log.parent.mkdir(parents=True)
    log.write_text("hello")
    return log


def archive_with(folder: Path, *runs: tuple[str, str]) -> LogArchive:
    """Return an archive with a log of each run, given by its DAG and run_id."""
    archive, file = LogArchive(f"memory://{folder}", {}), folder / "log"
    file.write_text("x")
    for run in runs:
        archive.put(log_path(TaskInstanceKey(*run, "t"), 1), file, folder)
    return archive


async def run_ids(database: Database, dag_id: str) -> list[str]:
    return sorted(run.run_id for run in await database.read(list_runs, dag_id=dag_id))


ROWS = (dag_run, task_instance, task_instance_history, xcom, rendered_fields)


def n_rows(conn: Connection) -> list[int]:
    return [len(conn.execute(select(table)).all()) for table in ROWS]


async def swept(
    database: Database, home: Path, policy: RetentionPolicy, batch_rows: int = 10, archive: LogArchive | None = None
) -> dict[str, int]:
    """Sweep to the end, and return how much went."""
    prepare_home(home)
    clock = Clock()
    calls = StoreCalls(Pulse(clock), clock, at_once=1)
    sweep = Sweep(policy, database=database, home=home, batch_rows=batch_rows, archive=archive, calls=calls)
    n_steps = 1
    while await sweep.step(NOW):
        n_steps += 1
        assert n_steps < 200
    return dict(+sweep.deleted)


BOUNDS = [
    (Bound(), ["r0", "r1", "r2", "r3", "r4"]),
    (Bound(before=NOW - 1.5 * DAY), ["r0", "r1"]),
    (Bound(before=NOW + DAY), ["r0"]),
    (Bound(per_dag=3), ["r0", "r1", "r2"]),
    (Bound(before=NOW - 3.5 * DAY, per_dag=4), ["r0", "r1", "r2", "r3"]),
    (Bound(before=NOW - 1.5 * DAY, per_dag=4), ["r0", "r1"]),
    (Bound(per_dag=9), ["r0", "r1", "r2", "r3", "r4"]),
]


@pytest.mark.parametrize(("bound", "kept"), BOUNDS, ids=str)
async def test_runs_go_by_age_and_by_number_but_the_newest_scheduled_one_stays(database, tmp_path, bound, kept):
    await with_runs(database, *range(5))
    n_old = await database.read(count_old_runs, bound)
    assert n_old == 5 - len(kept)
    deleted = await swept(database, tmp_path, RetentionPolicy(runs=bound))
    assert deleted == ({"runs": n_old} if n_old else {})
    assert await run_ids(database, "d") == kept
    assert await database.read(n_rows) == [len(kept)] * len(ROWS), "with all that was theirs"


async def test_runs_of_partitions_go_too_but_the_newest_of_the_schedule_stays(database, tmp_path):
    bound = Bound(before=NOW + DAY)

    def prepare(conn: Connection) -> int:
        add_dag(conn, "d")
        for day in (9, 8):
            add_run(conn, "d", day)  # of an earlier schedule, without partitions
        for day in (4, 2, 3):
            add_run(conn, "d", day, logical_date=None)
        add_run(conn, "d", 1, logical_date=None, run_type="manual")
        return count_old_runs(conn, bound)

    assert await database.write(prepare) == 4
    assert await swept(database, tmp_path, RetentionPolicy(runs=bound)) == {"runs": 4}
    assert await run_ids(database, "d") == ["r2", "r8"]


async def test_what_an_active_run_or_a_callback_needs_stays(database, tmp_path):
    def prepare(conn: Connection) -> None:
        add_dag(conn, "d")
        for day in (9, 8, 7, 5, 4):
            add_run(conn, "d", day)
        add_run(conn, "d", 6, active=True)
        called = add_run(conn, "d", 3)
        apply(conn, Batch(0, callbacks=[CallbackRequest(dag_run_id=called, event="on_success", created_at=NOW)]))
        add_run(conn, "d", 2, active=True)
        add_run(conn, "d", 1, run_type="manual")

    await database.write(prepare)
    policy = RetentionPolicy(runs=Bound(before=NOW, per_dag=1))
    await swept(database, tmp_path, policy)
    assert await run_ids(database, "d") == ["r2", "r3", "r6", "r7"]
    [request] = await database.read(next_callbacks, "me", 9)
    await database.write(finish_callback, request, None, "success")
    await database.write(lambda conn: conn.execute(update(dag_run).values(state="success", ended_at=NOW - DAY)))
    await swept(database, tmp_path, policy)
    assert await run_ids(database, "d") == ["r2"], "nothing needs them any more"
    assert await database.read(lambda conn: conn.execute(select(callback_request)).all()) == []


async def test_a_large_run_is_deleted_piece_by_piece(database):
    def prepare(conn: Connection) -> list[int]:
        add_dag(conn, "d")
        return [add_run(conn, "d", day, n_tasks=n) for day, n in ((3, 1), (2, 12), (1, 1))]

    ids = await database.write(prepare)
    before = sum(await database.read(n_rows))
    gone = []
    while found := await database.read(old_runs, Bound(before=NOW - 1.5 * DAY), limit=9):
        deleted = await database.write(delete_runs, [run.id for run in found], max_rows=10)
        after = sum(await database.read(n_rows))
        assert 0 < before - after == deleted.n_rows <= 10
        before = after
        gone += [run.id for run in deleted.runs]
        if after > len(ROWS):
            [large] = [run for run in await database.read(list_runs, dag_id="d") if run.id == ids[1]]
            assert ("being deleted" in large.reason) is (after < 49)
    assert gone == ids[:2]


async def test_a_run_that_was_cleared_meanwhile_stays(database):
    ids = await with_runs(database, 2)
    await database.write(lambda conn: conn.execute(update(dag_run).values(state="queued")))
    assert (await database.write(delete_runs, ids, max_rows=9)).n_rows == 0
    assert await database.read(n_rows) == [1] * len(ROWS)


async def test_a_run_stays_that_is_to_be_called_back_since_it_was_found(database):
    ids = await with_runs(database, 3, 2, 0)
    found = [run.id for run in await database.read(old_runs, Bound(before=NOW - DAY), limit=9)]
    assert found == ids[:2]
    callback = CallbackRequest(dag_run_id=ids[0], event="on_success", created_at=NOW)
    await database.write(apply, Batch(0, callbacks=[callback]))
    deleted = await database.write(delete_runs, found, max_rows=99)
    assert [run.id for run in deleted.runs] == ids[1:2]
    assert len(await database.read(next_callbacks, "me", 9)) == 1


async def test_a_run_that_may_still_miss_a_deadline_stays_until_its_miss_was_told(database, tmp_path):
    def prepare(conn: Connection) -> None:
        add_dag(conn, "d")
        for day, state in enumerate(["success", "failed", "success", "failed"]):
            run = add_run(conn, "d", day)
            conn.execute(update(dag_run).where(dag_run.c.id == run).values(state=state))
            due_at = NOW - 9 * DAY if day == 2 else NOW + DAY
            settled = "met" if day == 3 else "pending"
            conn.execute(deadline.insert(), {"dag_run_id": run, "number": 0, "due_at": due_at, "state": settled})
        add_run(conn, "d", -1)

    await database.write(prepare)
    policy = RetentionPolicy(runs=Bound(before=NOW + DAY / 2))
    assert await swept(database, tmp_path, policy) == {"runs": 2}
    assert await run_ids(database, "d") == ["r-1", "r1", "r2"], "one that has succeeded in time has none to miss"
    assert (await database.write(decide_due_deadlines, 1, NOW + DAY, 9))[0] == 2
    assert await swept(database, tmp_path, policy) == {}
    for request in await database.read(next_callbacks, "me", 9):
        await database.write(finish_callback, request, None, "success")
    assert await swept(database, tmp_path, policy) == {"runs": 2}
    assert await run_ids(database, "d") == ["r-1"]


async def test_xcoms_and_logs_go_before_their_runs_and_those_of_active_runs_stay(database, tmp_path):
    def prepare(conn: Connection) -> int:
        add_dag(conn, "d")
        for day in (0, 3, 4):
            add_run(conn, "d", day)
        add_run(conn, "d", 5, run_id=STRANGE, n_tasks=25)
        add_run(conn, "d", 6, active=True)
        return count_old_xcoms(conn, Bound(per_dag=2))

    names = {0: "r0", 3: "r3", 4: "r4", 5: STRANGE, 6: "r6", 7: "deleted by another machine"}
    logs = {day: write_log(tmp_path, name) for day, name in names.items()}
    assert await database.write(prepare) == 26
    unknown = tmp_path / "logs" / "dag_id=nobody" / "run_id=r"
    unknown.mkdir(parents=True)
    policy = RetentionPolicy(xcoms=Bound(per_dag=2), logs=Bound(before=NOW - 3.5 * DAY, per_dag=4))
    assert await swept(database, tmp_path, policy) == {"xcoms": 26, "logs": 2}
    assert await database.read(n_rows) == [5, 29, 29, 3, 29]
    # The folder without a run was written to a moment ago: by now, that is long after NOW.
    assert [day for day, log in logs.items() if log.exists()] == [0, 3, 6, 7]
    assert unknown.exists()


async def test_logs_in_the_store_go_by_the_same_bounds_but_not_those_of_unknown_runs(database, tmp_path):
    await with_runs(database, *range(4))
    archive = archive_with(tmp_path, *(("d", run_id) for run_id in ("r0", "r1", "r2", "r3", "unknown")))
    policy = RetentionPolicy(logs=Bound(before=NOW - 2.5 * DAY))
    assert await swept(database, tmp_path, policy, archive=archive) == {"archived_logs": 1}
    assert sorted(archive.run_folders("dag_id=d")) == ["run_id=r0", "run_id=r1", "run_id=r2", "run_id=unknown"]

    await swept(database, tmp_path, RetentionPolicy(runs=Bound(per_dag=1)), archive=archive)
    while remove_unwanted(tmp_path, archive, at_most=1):
        pass
    assert "run_id=r2" not in archive.run_folders("dag_id=d")


async def test_a_dag_whose_archived_logs_cannot_be_listed_is_said_and_the_others_are_swept(
    database, tmp_path, monkeypatch
):
    dag_ids = [f"d{n}" for n in range(7)]

    def prepare(conn: Connection) -> None:
        for dag_id in dag_ids:
            add_dag(conn, dag_id)
            add_run(conn, dag_id, 3)

    await database.write(prepare)
    archive = archive_with(tmp_path, *((dag_id, "r3") for dag_id in dag_ids))
    list_runs_of, failing = archive.run_folders, {"dag_id=d0", "dag_id=d2", "dag_id=d3", "dag_id=d4"}

    def run_folders(folder: str) -> list[str]:
        if folder in failing:
            raise LogStoreUnavailable("no right to list it")
        return list_runs_of(folder)

    monkeypatch.setattr(archive, "run_folders", run_folders)
    with capture_logs() as logged:
        policy = RetentionPolicy(logs=Bound(before=NOW - DAY))
        assert await swept(database, tmp_path, policy, archive=archive) == {"archived_logs": 1}
    left = [entry["dag_id"] for entry in logged if entry["event"] == "retention.logs_left_in_store"]
    assert left == ["d0", "d2", "d3", "d4"]
    assert [list_runs_of(f"dag_id={dag_id}") for dag_id in ("d1", "d5")] == [[], ["run_id=r3"]]


async def test_deleted_runs_take_their_logs_along(database, tmp_path):
    await with_runs(database, 0, 3)
    logs = [write_log(tmp_path, run_id) for run_id in ("r0", "r3")]
    await swept(database, tmp_path, policy_of(RetentionSettings(runs_days=2), NOW))
    assert [log.exists() for log in logs] == [True, False]
    assert not logs[1].parents[1].exists()


async def test_versions_go_that_no_run_needs_and_sources_that_no_version_needs(database, tmp_path):
    def version(conn: Connection, number: int, sources: Iterable[str], at: datetime) -> int:
        put_sources(conn, {name: f"text of {name}" for name in sources})
        refs = [SourceRef(f"{name}.py", name, name) for name in sources]
        return add_versions(conn, [DagVersionRow("d", number, str(number), "a.py", b"{}", refs, at)])["d"]

    def prepare(conn: Connection) -> int:
        add_dag(conn, "d")
        versions = [version(conn, n, sources, NOW - (9 - n) * DAY) for n, sources in enumerate(["ab", "bc", "d", "c"])]
        versions.append(version(conn, 4, ["e"], NOW - timedelta(minutes=5)))
        run = add_run(conn, "d", 0)
        conn.execute(update(dag_run).where(dag_run.c.id == run).values(version_id=versions[1]))
        conn.execute(update(dag).values(version_id=versions[4]))
        return count_unused_versions(conn, before=NOW)

    def kept(conn: Connection) -> tuple[list[str], set[str]]:
        return [row.version_hash for row in list_versions(conn, "d")], set(conn.scalars(select(source.c.content_hash)))

    assert await database.write(prepare) == 3
    prepare_home(tmp_path)
    laid_out = {name: tmp_path / SOURCES / f"{name}.py" for name in "acd"}
    for file in laid_out.values():
        file.write_text("text")
    policy = policy_of(RetentionSettings(versions_days=0.001), NOW)
    # A run may just be getting the version that was superseded five minutes ago.
    assert await swept(database, tmp_path, policy) == {"versions": 2, "sources": 2}
    assert await database.read(kept) == (["4", "3", "1"], {"b", "c", "e"})
    await database.write(lambda conn: conn.execute(update(dag_run).values(version_id=None)))
    assert await swept(database, tmp_path, policy) == {"versions": 1, "sources": 1}, (
        "although the version after it went"
    )
    assert await database.read(kept) == (["4", "3"], {"c", "e"})
    await database.write(put_sources, {"x": "left by a sweep that was stopped"})
    assert await swept(database, tmp_path, policy) == {"sources": 1}
    assert await database.read(kept) == (["4", "3"], {"c", "e"})


async def test_the_audit_goes_by_age(database, tmp_path):
    def prepare(conn: Connection) -> int:
        for day in range(30):
            record_audit(conn, at=NOW - day * DAY, actor="me", action="dag.pause")
        return count_old_audit(conn, before=NOW - 4.5 * DAY)

    assert await database.write(prepare) == 25
    policy = policy_of(RetentionSettings(audit_days=4.5), NOW)
    assert await swept(database, tmp_path, policy, batch_rows=7) == {"audit": 25}
    assert len(await database.read(list_audit)) == 5


async def test_settings_of_nothing_keep_everything(database, tmp_path):
    await database.write(lambda conn: add_dag(conn, "d") or add_run(conn, "d", 9999))
    nothing = RetentionSettings(task_state_days=0, changes_days=0, changes_number=0)
    assert policy_of(nothing, NOW) == RetentionPolicy()
    assert await swept(database, tmp_path, RetentionPolicy()) == {}


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        (RetentionSettings(task_state_days=0), ["lasting", "new", "old"]),
        (RetentionSettings(task_state_days=3), ["lasting", "new"]),
    ],
)
async def test_task_states_that_have_expired_go_and_others_by_age(database, tmp_path, settings, left):
    changes = {"old": 4, "new": 2, "expired": 2, "just expired": 4, "lasting": 4}
    ends = {"expired": NOW - DAY, "just expired": NOW - timedelta(seconds=1), "lasting": NOW + timedelta(seconds=1)}

    def prepare(conn: Connection) -> int:
        add_dag(conn, "d")
        run = add_run(conn, "d", 1)
        for key, days in changes.items():
            put_task_state(conn, TaskStateRow(run, "t", -1, key, b"1", NOW - days * DAY, ends.get(key)))
        return count_old_states(conn, before=policy_of(settings, NOW).task_states, now=NOW)

    n = len(changes) - len(left)
    assert await database.write(prepare) == n
    assert await swept(database, tmp_path, policy_of(settings, NOW), batch_rows=1) == {"task_states": n}
    assert await database.read(lambda conn: conn.scalars(select(task_state_store.c.key).order_by("key")).all()) == left
