"""A deferrable task: it waits for an external job without occupying a process.

The job is simulated by a file that contains its end time. A trigger checks the file, on an event loop that it shares
with other triggers. When the job has ended, the task goes on in a new process.

Needs:   nothing.
Runs:    once.
Prints:  `the job has ended: 42 rows` in the log of `run_job`.
"""

import asyncio
import json
import tempfile
import time
from datetime import datetime
from pathlib import Path

from asynsched import DAG, AsynschedException, BaseOperator, BaseTrigger, TriggerEvent


class JobEnded(BaseTrigger):
    """Fires when a job has ended."""

    def __init__(self, job, interval=0.2):
        super().__init__()
        self.job, self.interval = job, interval

    def serialize(self):
        return f"{__name__}.JobEnded", {"job": self.job, "interval": self.interval}

    async def run(self):
        while True:
            # Reading may block, and other triggers share this event loop, so a thread reads the file.
            job = json.loads(await asyncio.to_thread(Path(self.job).read_text))
            if job["ends_at"] <= time.time():
                break
            await asyncio.sleep(self.interval)
        yield TriggerEvent({"state": "done", "rows": job["rows"]})


class RunJob(BaseOperator):
    """Starts a job and waits for its end."""

    def __init__(self, *, seconds, **kwargs):
        super().__init__(**kwargs)
        self.seconds = seconds

    def execute(self, context):
        job = Path(tempfile.gettempdir(), "asynsched-examples", f"job-{context['run_id']}.json")
        job.parent.mkdir(exist_ok=True)
        job.write_text(json.dumps({"ends_at": time.time() + self.seconds, "rows": 42}))
        print("the job has started")
        # This process ends here. Only these arguments reach `finish`.
        self.defer(trigger=JobEnded(str(job)), method_name="finish", kwargs={"job": str(job)}, timeout=60)

    def finish(self, context, event, job):
        Path(job).unlink()
        if event["state"] != "done":
            raise AsynschedException(f"the job is {event['state']}")
        print(f"the job has ended: {event['rows']} rows")
        return event["rows"]


with DAG("deferred_job", schedule="@once", start_date=datetime(2026, 1, 1), tags=["example"]) as dag:
    RunJob(task_id="run_job", seconds=1)

if __name__ == "__main__":
    dag.test()
