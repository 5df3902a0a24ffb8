"""The sqlite and postgres providers, and common-sql on both."""

import sqlite3
from urllib.parse import parse_qs, urlsplit

import pytest

pytestmark = pytest.mark.timeout(600)
SQLITE = """
    from datetime import datetime

    from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
    from airflow.providers.sqlite.hooks.sqlite import SqliteHook
    from airflow.sdk import DAG, BaseHook, task

    with DAG("lite", schedule="@once", start_date=datetime(2026, 1, 1)):
        create = SQLExecuteQueryOperator(
            task_id="create", conn_id="shop", sql=["CREATE TABLE sold (n INT)", "INSERT INTO sold VALUES (3), (4)"]
        )

        @task.sql(conn_id="shop")
        def total(least):
            return f"SELECT sum(n) FROM sold WHERE n > {least}"

        @task
        def reads(totals):
            hook = BaseHook.get_hook("shop")
            assert isinstance(hook, SqliteHook), hook
            assert [totals, hook.get_first("SELECT max(n) FROM sold")] == [[(7,)], (4,)], totals

        found = total(1)
        create >> found
        reads(found)
"""
POSTGRES = """
    from datetime import datetime

    from airflow.providers.common.sql.hooks.sql import fetch_all_handler
    from airflow.providers.common.sql.operators.generic_transfer import GenericTransfer
    from airflow.providers.common.sql.operators.sql import (
        BranchSQLOperator, SQLCheckOperator, SQLColumnCheckOperator, SQLExecuteQueryOperator,
        SQLTableCheckOperator, SQLThresholdCheckOperator, SQLValueCheckOperator,
    )
    from airflow.providers.common.sql.sensors.sql import SqlSensor
    from airflow.providers.postgres.hooks.postgres import PostgresHook
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG, Asset, chain, task

    shop = {"conn_id": "shop"}
    with DAG("postgres", schedule="@once", start_date=datetime(2026, 1, 1), template_searchpath=TEMPLATES):
        create = SQLExecuteQueryOperator(task_id="create", sql="create.sql", split_statements=True, **shop)
        insert = SQLExecuteQueryOperator(
            task_id="insert", sql="INSERT INTO sold VALUES (%(day)s, %(n)s), (%(day)s, 4)",
            parameters={"day": "{{ ds }}", "n": 3}, **shop
        )
        select = SQLExecuteQueryOperator(
            task_id="select", sql="SELECT n FROM sold ORDER BY n", handler=fetch_all_handler,
            show_return_value_in_logs=True, outlets=[Asset("postgres://shop/sold")], **shop,
        )
        checks = [
            SQLCheckOperator(task_id="check", sql="SELECT count(*) FROM sold", **shop),
            SQLValueCheckOperator(task_id="value", sql="SELECT sum(n) FROM sold", pass_value=7, tolerance=0.1, **shop),
            SQLThresholdCheckOperator(
                task_id="threshold", sql="SELECT max(n) FROM sold", min_threshold=1, max_threshold=9, **shop
            ),
            SQLColumnCheckOperator(
                task_id="column", table="sold", **shop,
                column_mapping={"n": {"min": {"geq_to": 3}, "null_check": {"equal_to": 0}}},
            ),
            SQLTableCheckOperator(
                task_id="table", table="sold", checks={"rows": {"check_statement": "count(*) = 2"}}, **shop
            ),
        ]
        branch = BranchSQLOperator(
            task_id="branch", sql="SELECT count(*) > 0 FROM sold", follow_task_ids_if_true="move",
            follow_task_ids_if_false="never", **shop
        )
        move = GenericTransfer(
            task_id="move", sql="SELECT day, n FROM sold", destination_table="copied", source_conn_id="shop",
            destination_conn_id="shop", preoperator="CREATE TABLE copied (day date, n int)",
            insert_args={"commit_every": 1},
        )
        paged = GenericTransfer(
            task_id="paged", sql="SELECT day, n FROM sold", destination_table="copied", source_conn_id="shop",
            destination_conn_id="shop", page_size=1, deferrable=True,
        )
        wait = SqlSensor(task_id="wait", sql="SELECT count(*) = 4 FROM copied", poke_interval=0.1, **shop)

        @task
        def hooks(rows):
            hook = PostgresHook(postgres_conn_id="shop")
            hook.insert_rows("copied", [("2026-01-01", 8)], target_fields=["day", "n"])
            found = [row[0] for row in hook.get_records("SELECT n FROM copied ORDER BY n")]
            assert [rows, found] == [[(3,), (4,)], [3, 3, 4, 4, 8]], (rows, found)
            assert "postgresql" in hook.get_uri()
            frame = hook.get_sqlalchemy_engine().connect()
            frame.close()

        chain(create, insert, select, checks, branch, [move, EmptyOperator(task_id="never")])
        move >> paged >> wait >> hooks(select.output)
"""


def test_sqlite_tasks_decorators_and_hooks_run(site):
    site.connect("shop", conn_type="sqlite", host=f"{site.root}/shop.db")
    site.write("lite.py", SQLITE)
    site.succeed("lite")
    with sqlite3.connect(f"{site.root}/shop.db") as shop:
        assert shop.execute("SELECT count(*) FROM sold").fetchone() == (2,)
    shop.close()


def test_postgres_operators_checks_transfers_sensors_and_hooks_run(site, postgres_server):
    url = urlsplit(postgres_server.new_database(migrated=False))
    site.connect(
        "shop", conn_type="postgres", host=parse_qs(url.query)["host"][0], login=url.username, schema=url.path[1:]
    )
    (site.root / "templates").mkdir()
    (site.root / "templates" / "create.sql").write_text(
        "CREATE TABLE sold (day date, n int); SELECT '{{ dag.dag_id }}';"
    )
    site.write("pg.py", POSTGRES.replace("TEMPLATES", repr(f"{site.root}/templates")))
    site.env["ASYNSCHED_PARSE__READABLE"] = f"{site.root}/templates"
    site.succeed("postgres")
    states = site.task_states("postgres", "latest")
    assert states.pop("never") == "skipped"
    assert set(states.values()) == {"success"}, states
    assert "(3,)" in site.log("postgres", "select")
