"""A pipeline of bash commands.

The last line that a command prints is its result, which the next command's template pulls. Exit code 99 skips the
task, and any other exit code except 0 fails it.

Needs:   bash, and the usual `seq`, `awk` and `wc`.
Runs:    every day at midnight UTC; the run of the most recent midnight starts at once.
Prints:  `the sum of 1 to 100 is 5050` in the log of `say`.
"""

from datetime import datetime

from asynsched import DAG, BashOperator, task

with DAG("bash_pipeline", schedule="@daily", start_date=datetime(2026, 1, 1), tags=["example"]) as dag:
    add = BashOperator(task_id="add", bash_command="seq 100 | awk '{ sum += $1 } END { print sum }'")
    say = BashOperator(
        task_id="say",
        bash_command='echo "the sum of 1 to 100 is $SUM"',
        env={"SUM": "{{ ti.xcom_pull(task_ids='add') }}"},
        append_env=True,
    )

    @task.bash
    def count_letters(text):
        return f"printf '%s' '{text}' | wc -c"

    add >> say
    count_letters(say.output)

if __name__ == "__main__":
    dag.test()
