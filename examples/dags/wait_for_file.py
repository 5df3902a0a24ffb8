"""A sensor that waits for a file.

In `reschedule` mode the sensor's process ends between two checks, so waiting takes no slot.

Needs:   the file, `/tmp/asynsched-examples/incoming.txt` by default. Create it after the run has started:
             asynsched dags trigger wait_for_file
             mkdir -p /tmp/asynsched-examples && echo hello > /tmp/asynsched-examples/incoming.txt
Runs:    only when you trigger it; `--conf '{"path": "/another/file"}'` names another file.
Prints:  the size of the file, in the log of `measure`.
"""

from datetime import datetime
from pathlib import Path

from asynsched import DAG, FileSensor, Param, task

with DAG(
    "wait_for_file",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    tags=["example"],
    params={"path": Param("/tmp/asynsched-examples/incoming.txt", type="string")},
) as dag:
    wait = FileSensor(task_id="wait", filepath="{{ params.path }}", poke_interval=1, timeout=3600, mode="reschedule")

    @task
    def measure(params):
        size = Path(params["path"]).stat().st_size
        print(f"{params['path']} has {size} bytes")
        return size

    wait >> measure()

if __name__ == "__main__":
    dag.test()
