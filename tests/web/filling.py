"""A database with everything that the web shows, filled by a real scheduler."""

import textwrap
from pathlib import Path

import anyio
import sqlalchemy as sa

from asynsched import Scheduler
from asynsched.queries.hitl import QuestionFilter, list_questions
from asynsched.settings import Settings
from asynsched.store.rows import count
from asynsched.store.runs.dag_runs import list_runs
from asynsched.store.schema import dag_file, import_error
from asynsched.store.secrets import ConnectionRow, add_connection, set_variable
from tests.support.waiting import DEADLINE_SECONDS, eventually_true

FILES = {
    "report.py": '''
        """Reports."""
        from datetime import datetime

        from asynsched import DAG, Asset, AssetAlias, Param, TaskGroup, task

        ORDERS = Asset("orders", uri="s3://shop/orders", group="shop", extra={"owner": "sales"})

        with DAG(
            "report", schedule=None, start_date=datetime(2026, 1, 1), tags=["sales", "numbers"],
            doc_md="# Report", description="Makes a report.", default_args={"owner": "ada"},
            params={"n": Param(3, type="integer", minimum=0)},
        ) as report:
            @task(doc_md="Reads *numbers*.", task_display_name="Read the numbers")
            def extract(params):
                print("reading", params["n"], "numbers")
                return list(range(params["n"]))

            @task
            def double(value):
                return 2 * value

            doubled = report.add_result(double.expand(value=extract()))

            with TaskGroup("sums"):
                @task(outlets=[ORDERS, AssetAlias("anything")])
                def load(values, *, ti=None, outlet_events=None):
                    ti.xcom_push("sum", sum(values))
                    outlet_events[ORDERS].extra = {"rows": len(list(values))}
                    outlet_events[AssetAlias("anything")].add(Asset("found", uri="s3://shop/found"))

                load(doubled)
        ''',
    "others.py": """
        from datetime import datetime, timedelta

        from asynsched import DAG, ApprovalOperator, Asset, Param, task

        with DAG("fails", schedule=None, tags=["sales"]):
            @task(
                retries=1, retry_delay=timedelta(0),
                templates_dict={"run": "{{ run_id }}, try {{ ti.try_number }}", "token": "{{ run_id }}"},
            )
            def broken():
                raise ValueError("no way")

            @task
            def after():
                pass

            broken() >> after()

        with DAG(
            "daily", schedule="@daily", start_date=datetime(2026, 1, 1), is_paused_upon_creation=True,
            params={"code": Param("a", type="string", pattern="^(a|aa)+$")},
        ):
            @task
            def sweep():
                pass

            sweep()

        with DAG("asks", schedule=None):
            ApprovalOperator(
                task_id="approve", subject="Deploy?", body="Version 2.", params={"why": Param("", type="string")}
            )

        # Described as in the other file: the file that is parsed last describes an asset.
        ORDERS = Asset("orders", uri="s3://shop/orders", group="shop", extra={"owner": "sales"})

        with DAG("follows", schedule=ORDERS):
            @task
            def note(*, triggering_asset_events):
                return len(triggering_asset_events)

            note()

        with DAG("waits", schedule=ORDERS & Asset("never", uri="s3://shop/never")):
            @task
            def see():
                pass

            see()
        """,
    "broken.py": """
        import nothing_of_that_name
        from asynsched import DAG
        """,
}
"""DAG files by name. `report` succeeds, `fails` fails at its second try, `asks` waits for a person, `follows` runs
after `report`, `waits` has a queued event, `daily` is paused, and `broken.py` cannot be imported."""
RUN_ID = "first"
"""The run_id of the runs that are triggered."""


def write_dags(folder: Path) -> None:
    """Write the DAG files."""
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip())


async def fill(settings: Settings) -> None:
    """Run the DAGs in a scheduler, and store a variable and a connection of each kind."""
    scheduler = Scheduler(settings=settings)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(DEADLINE_SECONDS):
            await tasks.start(scheduler.serve)
            database = scheduler._database
            # Before the runs: an event that comes before a DAG is known is not queued for it.
            await eventually_true(database, _has_read)
            await scheduler.run("report", conf={"n": 2}, run_id=RUN_ID)
            await scheduler.run("fails", run_id=RUN_ID)
            await scheduler.trigger("asks", run_id=RUN_ID)
            await eventually_true(database, _has_followed)
            await eventually_true(database, _has_asked)
            await database.write(_add_secrets)
        scheduler.request_stop()


def _has_read(conn: sa.Connection) -> bool:
    return [count(conn, sa.select(table)) for table in (dag_file, import_error)] == [len(FILES), 1]


def _has_asked(conn: sa.Connection) -> bool:
    return bool(list_questions(conn, QuestionFilter(states=("awaiting_input",))).items)


def _has_followed(conn: sa.Connection) -> bool:
    return [run.state for run in list_runs(conn, dag_id="follows")] == ["success"]


def _add_secrets(conn: sa.Connection) -> None:
    set_variable(conn, "greeting", "hello", "Said first.")
    set_variable(conn, "api_key", "hunter22")
    add_connection(
        conn,
        ConnectionRow(
            "shop", "postgres", "The shop.", "shop.example", "sales", "ada", "hunter22", 5432,
            '{"token": "hunter22", "sslmode": "require"}',
        ),
    )  # fmt: skip
