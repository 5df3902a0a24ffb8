"""DAG files of tests on several machines. Their tasks say what they do in a file of the folder MARKS."""

SAYS = """
    import os, pathlib, time
    from asynsched import DAG, task

    FOLDER = pathlib.Path(os.environ.get("MARKS", "."))

    def say(text):
        with (FOLDER / "said").open("a") as file:
            file.write(text + "\\n")

    def wait():
        while not (FOLDER / "go").exists():
            time.sleep(0.02)
"""
"""The head of a file: `say`, and `wait`, which ends once the test lets tasks go."""

DAGS = (
    SAYS
    + """
    import sys
    from datetime import timedelta
    from asynsched import Variable

    VERSION = 1

    with DAG("all"):

        @task
        def first(ti=None):
            ti.xcom_push(key="more", value=[1, "two"])
            print("the password is", Variable.get("api_password"))
            for n in range(2000):
                print("line", n)
            say(f"first, version {VERSION}")
            wait()
            return {"n": 41}

        @task
        def second(given, ti=None):
            say(f"second, version {VERSION}")
            return [given["n"] + 1, ti.xcom_pull(task_ids="first", key="more"), VERSION]

        @task(trigger_rule="all_done")
        def fails(given):
            print("x" * 300_000)
            raise ValueError("no luck")

        fails(second(first()))

    with DAG("waits"):

        @task(retries=1, retry_delay=timedelta(0))
        def waits(ti=None):
            print("line 1")
            say(f"begins {ti.try_number}")
            wait()
            print("line 2")
            say(f"ends {ti.try_number}")

        waits()

    with DAG("alone"):

        @task
        def alone(ti=None):
            import fcntl, signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            file = (FOLDER / "lock").open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("not alone")
            say(f"alone {ti.try_number}")
            wait()

        @task
        def keeps_the_run_going():
            wait()

        alone()
        keeps_the_run_going()

    with DAG("counts"):

        @task
        def count(n):
            say(f"count {n}")
            return n

        count.expand(n=list(range(20)))

    with DAG("rejected"):

        @task(executor_config={"reject": "there is no queue of that name"}, retries=3)
        def rejected():
            pass

        rejected()
"""
)

REST = (
    SAYS
    + """
    from datetime import timedelta
    from asynsched import Asset, BaseOperator, BaseTrigger, Metadata, TriggerEvent

    def place():
        return os.environ.get("PLACE", "here")

    class Soon(BaseTrigger):
        def serialize(self):
            return f"{__name__}.Soon", {}

        async def run(self):
            yield TriggerEvent(place())

    class Waits(BaseOperator):
        def execute(self, context):
            self.defer(trigger=Soon(), method_name="finish")

        def finish(self, context, event):
            return [event, place()]

    with DAG("rest", on_failure_callback=lambda context: say("called " + place())):
        Waits(task_id="waits")

        @task(execution_timeout=timedelta(seconds=1))
        def lasts():
            time.sleep(600)

        @task(outlets=[Asset("rows")])
        def produces():
            yield Metadata(Asset("rows"), {"n": 3})

        @task
        def makes():
            return "m" * 1000

        @task
        def takes(made):
            return len(made), sorted(name for name in os.environ if name.startswith("ASYNSCHED_"))

        lasts(), produces(), takes(makes())
"""
)
"""A DAG of what tasks do beside returning values."""

CALLBACKS = (
    SAYS
    + """
    from asynsched import Variable

    def called(context):
        place = os.environ.get("PLACE", "here")
        print("line 1")
        say(f"called {place}")
        wait()
        Variable.set("called", place)
        print("line 2")
        say("over")

    with DAG("calls", on_failure_callback=called):

        @task
        def fails():
            raise ValueError("no luck")

        fails()
"""
)
"""A DAG whose callback waits."""
