"""A DAG with so many tasks that a run or two fill a large grid, whose rows a browser lays out when they are seen."""

from asynsched import DAG, BashOperator, EmptyOperator, TaskGroup

N_ROWS = 2100
LONGEST = "load_a_part_of_the_warehouse"

with DAG("large", schedule=None, max_active_tasks=64):
    with TaskGroup("stage"):
        EmptyOperator(task_id=LONGEST)
    BashOperator.partial(task_id="mapped").expand(bash_command=["true"])
    for number in range(N_ROWS - 3):
        EmptyOperator(task_id=f"t{number}")
