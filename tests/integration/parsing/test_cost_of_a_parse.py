"""The cost of a parse besides the DAG file's own work: forks, imports, and functions that it is the first to run."""

import json
import subprocess
import sys
from pathlib import Path

import asynsched
import sandbox
from tests.integration.parsing.parse_site import Site

OURS = tuple(f"{Path(package.__path__[0])}/" for package in (asynsched, sandbox))
"""Other calls by Python's own library differ by its version."""
FILE = """
from asynsched import DAG, task

@task
def work(value):
    return value

with DAG("counted", schedule="@daily"):
    work(1)
"""
COUNTING = """
import json, os, sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from asynsched.serialization.schema import ParseQuestions
from asynsched.protocol.parse_messages import ParseLimits
from sandbox.parsing import supervise
from sandbox.parsing.importing import ParseRequest
from sandbox.parsing.supervise import PipeLifeline
from sandbox.parse_server import warm

events, calls, exit = [], Counter(), os._exit
COUNTED = ("os.fork", "os.exec", "os.posix_spawn", "subprocess.Popen")

def note(frame, event, argument):
    if event == "call":
        calls[f"{frame.f_code.co_filename} {frame.f_code.co_qualname}"] += 1

def tell_and_exit(status):
    sys.setprofile(None)
    os.write(1, json.dumps([sorted(sys.modules), calls]).encode())
    exit(status)

sys.addaudithook(lambda event, _: events.append(event) if event in COUNTED else None)
supervise.become_guardian()
limits = ParseLimits(airflow_options=json.loads(sys.argv[2]))
warm(limits)
before = set(sys.modules)
events.clear()
os._exit = tell_and_exit
os.register_at_fork(after_in_child=lambda: sys.setprofile(note))
folder, lifeline = Path(sys.argv[1]), PipeLifeline(os.pipe()[1])
for number in range(3):
    (scratch := folder.parent / f"scratch_{number}").mkdir()
    request = ParseRequest("counted.py", folder, scratch, limits, ParseQuestions(now=datetime.now(UTC)))
    report = supervise.parse_file(request, lifeline)
    assert not report.errors, report.errors
modules, calls = json.loads(report.output)
print(json.dumps([events, [name for name in modules if name not in before], calls]))
"""


def test_a_parse_costs_one_fork_no_other_import_and_few_functions(tmp_path):
    site = Site(tmp_path)
    site.write("counted.py", FILE)
    options = json.dumps(site.settings.airflow_options)
    command = [sys.executable, "-P", "-c", COUNTING, str(site.settings.dags_path), options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    events, imported, calls = json.loads(done.stdout)
    assert events == ["os.fork"] * 3
    assert [name.startswith("unusual_prefix_") for name in imported] == [True]
    assert not [call for call in calls if "/inspect.py " in call], "a signature, where a function's code tells enough"
    assert not [call for call in calls if "/croniter/" in call], "a preset that is read again"
    own = [call for call in calls if call.startswith(OURS)]
    assert 0 < len(own) <= 280
