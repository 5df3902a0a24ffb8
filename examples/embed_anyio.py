"""A program that runs a DAG in its own event loop, and looks at what happened.

The scheduler runs the DAGs in `dags/` beside this file, and keeps its state in `.asynsched` in the working directory.

Needs:   nothing else
Runs:    python examples/embed_anyio.py
Prints:  branching for 50: success
             how_large success
             check_by_hand skipped
             accept success
             ship success
             log: [2026-01-01T08:00:00.000Z] standard delivery, shipped
"""

from pathlib import Path

import anyio

from asynsched import Scheduler

DAGS = Path(__file__).parent / "dags"


async def main() -> None:
    async with Scheduler(dags=DAGS) as scheduler:  # serves within the block
        run = await scheduler.run("branching", {"amount": 50})  # waits for the end of the run
        print(f"{run.dag_id} for {run.conf['amount']}: {run.state}")
        for task in run.tasks:
            print("   ", task.task_id, task.state)
        client = scheduler.client()  # every other question, and every action
        log = await client.task_logs((run.dag_id, run.run_id, "ship"))
        print("    log:", log.text.strip().splitlines()[-1])


if __name__ == "__main__":
    anyio.run(main)
