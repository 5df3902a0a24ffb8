"""A DAG whose grid is a large one with two runs: the browser lays out a row when the row comes into view.

With the group `rest` folded, the grid is not a large one.
"""

from asynsched import DAG, BashOperator, EmptyOperator, TaskGroup

N_ROWS, N_REST = 2100, 200
LONGEST = "load_a_part_of_the_warehouse"

with DAG("large", schedule=None, max_active_tasks=64):
    with TaskGroup("stage"):
        EmptyOperator(task_id=LONGEST)
    BashOperator.partial(task_id="mapped").expand(bash_command=["true"])
    for number in range(N_ROWS - N_REST - 4):
        EmptyOperator(task_id=f"t{number}")
    with TaskGroup("rest"):
        for number in range(N_REST):
            EmptyOperator(task_id=f"r{number}")
