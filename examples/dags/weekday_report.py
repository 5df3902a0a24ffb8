"""A cron schedule in a time zone, and templates.

Needs:   nothing.
Runs:    at 06:00 Berlin time from Monday to Friday, also across clock changes. `catchup` is False by default, so of
         the missed runs only the most recent one starts, at once.
Prints:  the date of the report, in the log of `write_report`.
"""

from datetime import datetime
from zoneinfo import ZoneInfo

from asynsched import DAG, BashOperator, EmptyOperator

with DAG(
    "weekday_report",
    schedule="0 6 * * MON-FRI",
    start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    tags=["example"],
    doc_md="A report on every weekday morning.",
) as dag:
    collect = EmptyOperator(task_id="collect")
    write_report = BashOperator(
        task_id="write_report",
        bash_command="echo 'report for {{ ds }}, made by {{ run_id }}, next to {{ macros.ds_add(ds, 1) }}'",
    )
    collect >> write_report

if __name__ == "__main__":
    dag.test()
