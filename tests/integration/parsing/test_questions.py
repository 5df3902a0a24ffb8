"""Files that ask for variables and connections while they are parsed, and files that ask for too much."""

import anyio
import pytest
from msgspec.structs import replace

from asynsched.parsing.processes.sandbox_parser import SandboxParser
from asynsched.protocol.parse_messages import MOST_QUESTIONS, Answered
from tests.integration.parsing.parse_site import Site

ASKS = """
    from asynsched import DAG, Variable

    dag = DAG(Variable.get("{name}"), schedule=None)
"""
CHANNEL = """
    import fcntl, os, stat

    def is_channel(number):
        try:
            is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
        except OSError:
            return False
        return is_pipe and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY

    channel = next(filter(is_channel, range(3, 64)))
"""


class Names:
    """Every variable has its own name as its value; `large` is as large as an answer may be."""

    def __init__(self):
        self.asked = []
        self.n_at_once = self.most_at_once = 0

    async def answer(self, asked):
        self.asked.append(asked.name)
        self.n_at_once += 1
        self.most_at_once = max(self.n_at_once, self.most_at_once)
        await anyio.lowlevel.checkpoint()
        self.n_at_once -= 1
        value = "x" * 1_000_000 if asked.name == "large" else asked.name
        return Answered(asked.number, value), f"digest of {asked.name}"


@pytest.fixture
def names():
    return Names()


@pytest.fixture
async def site(tmp_path, names):
    site = Site(tmp_path)
    async with SandboxParser(site.settings, names) as site.parser:
        yield site


async def parsed(site, text):
    site.write("asks.py", text)
    return await site.parser.parse("asks.py")


def asked_in(report):
    """Return what the scheduler has answered; every parse reads some options."""
    return [one for one in report.asked if one.kind != "option"]


async def test_a_file_sees_one_value_of_each_name_also_from_threads(site, names):
    report = await parsed(
        site,
        """
        import threading
        from asynsched import DAG, Variable

        found = {}

        def read(n):
            found[n] = Variable.get(f"name{n % 8}")

        threads = [threading.Thread(target=read, args=[n]) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {n: f"name{n % 8}" for n in range(40)}, found
        assert len(Variable.get("large")) == 1_000_000
        dag = DAG("asks", schedule=None)
        """,
    )
    assert report.errors == ()
    assert sorted(names.asked) == ["large", *(f"name{n}" for n in range(8))]
    assert {(one.name, one.digest) for one in asked_in(report)} == {(name, f"digest of {name}") for name in names.asked}


async def test_a_file_that_asks_for_too_many_names_is_told_so(site, names):
    report = await parsed(
        site,
        f"""
        from asynsched import Variable

        for n in range({MOST_QUESTIONS + 1}):
            Variable.get(f"name{{n}}")
        """,
    )
    assert (
        f"asks.py:5: SupervisorError: the variable 'name{MOST_QUESTIONS}': a file may ask" in report.errors[0].message
    )
    assert len(names.asked) == len(asked_in(report)) == MOST_QUESTIONS


async def test_a_file_that_asks_without_end_gets_few_answers_and_a_timeout(site, names):
    limits = replace(site.settings.parse, timeout=2)
    async with SandboxParser(replace(site.settings, parse=limits), names) as site.parser:
        report = await parsed(
            site,
            CHANNEL
            + """
    line = b'{"type": "asked", "kind": "variable", "name": "x", "number": 7}\\n'
    while True:
        os.write(channel, line * 100)
    """,
        )
        assert [error.kind for error in report.errors] == ["timeout"]
        assert 0 < len(names.asked) <= MOST_QUESTIONS
        assert names.most_at_once == 1
        assert len(asked_in(report)) == 1
        # The guardian and its connection are in order for the next file.
        assert [one.dag.dag_id for one in (await parsed(site, ASKS.format(name="next"))).dags] == ["next"]


async def test_a_process_that_dies_while_it_asks_leaves_the_guardian_in_order(site):
    report = await parsed(
        site,
        CHANNEL
        + """
    os.write(channel, b'{"type": "asked", "kind": "variable", "name": "x", "number": 1}\\n')
    os._exit(3)
    """,
    )
    assert [error.kind for error in report.errors] == ["exit"]
    for name in ("one", "two"):
        assert [one.dag.dag_id for one in (await parsed(site, ASKS.format(name=name))).dags] == [name]


async def test_only_names_can_be_asked_for_and_only_by_the_parse_itself(site):
    report = await parsed(
        site,
        """
        import os
        from asynsched import Variable
        from asynsched.authoring.supervisor import SupervisorError, ask

        for question in (lambda: Variable.set("x", "y"), lambda: ask("xcom_pull", key="x")):
            try:
                question()
            except SupervisorError as exc:
                print(exc)
        if os.fork() == 0:
            try:
                Variable.get("x")
            except SupervisorError as exc:
                print(exc, flush=True)
            os._exit(0)
        os.wait()
        """,
    )
    assert report.errors == ()
    said = report.output.splitlines()
    assert said[0].startswith("variable_set: this is available while a task runs")
    assert said[1].startswith("xcom_pull: this is available while a task runs")
    assert said[2] == "variable_get: only the process that parses the file can ask"
