"""Tasks, files, logs and commands do not reveal the scheduler's memory and environment, secrets or keys."""

import errno
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet

from asynsched.protocol.home_files import KEEPER_MARK
from sandbox.confinement import kernel
from tests.support.older_kernels import OLDER_ABIS, with_landlock
from tests.support.up import Site, title_of
from tests.support.users import ORDINARY_UID, become_ordinary
from tests.support.waiting import DEADLINE_SECONDS

COLD = True

LOOKS = """
    import os
    from asynsched import DAG, get_current_context, task

    def look(process):
        try:
            with open(f"/proc/{process}/environ", "rb") as environment, open(f"/proc/{process}/mem", "rb"):
                return "read" if environment.read() else "empty"
        except PermissionError:
            return "refused"

    with DAG("looks"):

        @task
        def around():
            asked = get_current_context()["dag_run"].conf
            return {"user": os.getuid(), "self": look("self"), **{name: look(asked[name]) for name in asked}}

        around()
"""


@pytest.fixture
def site() -> Iterator[Site]:
    """Yield a site of an ordinary user, in a folder that this user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        site.write("looks.py", LOOKS)
        if os.getuid() == 0:
            site.become = become_ordinary
            for path in (site.root, site.dags):
                os.chown(path, ORDINARY_UID, ORDINARY_UID)
        yield site
        site.end_everything()


def test_a_task_cannot_read_memory_or_environment_of_scheduler_and_keeper(site):
    with site.up() as up:
        site.wait_for_dag("looks")
        site.until(lambda: len(keeper_and_zygotes(site)) == 3, "the keeper and its zygotes are there")
        asked = json.dumps({"scheduler": up.process.pid, **keeper_and_zygotes(site)})
        site.run("dags", "trigger", "looks", "--conf", asked, "--run-id", "one", "--wait")
        [found] = site.json("tasks", "xcom", "looks", "one", "around")
    assert found["value"] == {
        "user": os.getuid() or ORDINARY_UID,
        "self": "read",
        "scheduler": "refused",
        "keeper": "refused",
        "zygote": "refused",
        "zygote-full": "refused",
    }


SPIES = """
    import os, time
    from pathlib import Path
    from asynsched import DAG, task

    def processes_with_the_key():
        for process in filter(str.isdecimal, os.listdir("/proc")):
            try:
                if b"ASYNSCHED_FERNET_KEY" in Path("/proc", process, "environ").read_bytes():
                    yield Path("/proc", process, "cmdline").read_text()
            except OSError:
                pass

    with DAG("spies", schedule="@hourly", is_paused_upon_creation=True):

        @task
        def spies():
            Path("{root}/begun").touch()
            found = set()
            while not Path("{root}/enough").exists():
                found.update(processes_with_the_key())
                time.sleep(0.005)  # no process lives for so short a time
            return sorted(found)

        spies()
"""


def test_a_task_sees_no_key_in_processes_that_simulate_or_preview(site):
    site.write("spies.py", SPIES.format(root=site.root))
    site.env |= {"ASYNSCHED_FERNET_KEY": Fernet.generate_key().decode(), "ASYNSCHED_WEB__LISTEN": "127.0.0.1:0"}
    with site.up():
        site.wait_for_dag("spies")
        link = httpx.URL(site.run("users", "link").stdout.split()[-1])
        site.run("dags", "trigger", "spies", "--run-id", "one")
        site.run("dags", "unpause", "spies")
        site.until((site.root / "begun").exists, "the task looks")
        address, sent = f"{link.scheme}://{link.netloc.decode()}", {"sec-fetch-site": "same-origin"}
        with httpx.Client(base_url=address, headers=sent, timeout=DEADLINE_SECONDS) as browser:
            browser.get(link)
            api, now = "/api/asynsched/v1", datetime.now(UTC)
            span = {"start": now.isoformat(), "end": (now + timedelta(hours=2)).isoformat()}
            simulated = browser.post(f"{api}/simulate", json=span)
            assert simulated.is_success, simulated.text
            refused = browser.post(f"{api}/preview", json={"where": "main", "hours": 0})
            assert "no Git repository" in refused.json()["detail"]
        (site.root / "enough").touch()
        site.until(lambda: site.json("runs", "show", "spies", "one")["state"] == "success", "the task has looked")
        [found] = site.json("tasks", "xcom", "spies", "one", "spies")
    assert found["value"] == []


def keeper_and_zygotes(site: Site) -> dict[str, int]:
    """Return their processes, while there is no task."""
    titles = {"asynsched: keeper": "keeper", "asynsched: zygote": "zygote", "asynsched: full zygote": "zygote-full"}
    found = [(title_of(process), process.pid) for process in site.processes()]
    return {titles[title]: pid for title, pid in found if title in titles}


WARMING = """
import os, subprocess, sys
from sandbox import {module}

def be_looked_at():
    look = ["cat", f"/proc/{{os.getpid()}}/environ"]
    print(subprocess.run(look, capture_output=True, text=True), flush=True)
    os._exit(0)

{module}.warm = be_looked_at
{module}.main(sys.argv[1:])
"""


KEEPER_OPTIONS = (
    "--ready {given} --lease-seconds 15 --lease-grace 10 --kill-time 5 --import-timeout 30 --default-timezone UTC"
    " --airflow ours --airflow-options {{}} --log-bytes 1000"
)
ZYGOTE_OPTIONS = "--channel {given} --lifeline {given} --keeper {parent}"


@pytest.mark.parametrize(("module", "options"), [("keeper", KEEPER_OPTIONS), ("zygote", ZYGOTE_OPTIONS)])
def test_processes_hide_memory_and_environment_while_they_warm_up_too(site, module, options):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        given = theirs.fileno()
        program = WARMING.format(module=module)
        options = options.format(given=given, parent=os.getpid()).split()
        found = subprocess.run(
            [sys.executable, "-P", "-c", program, "--home", site.root, *options],
            env={**os.environ, KEEPER_MARK: "warming"},
            pass_fds=[given],
            preexec_fn=site.become,
            capture_output=True,
            text=True,
            check=True,
        )
    assert "Permission denied" in found.stdout, found
    assert "warming" not in found.stdout


SECRET = "hunter" + "2" * 8
TASKS = """
    import json, os, socket, sys
    from asynsched import BaseTrigger, BaseOperator, BaseHook, DAG, TriggerEvent, Variable, get_current_context, task

    class Fires(BaseTrigger):
        def __init__(self, password):
            self.password = password

        def serialize(self):
            return f"{__name__}.Fires", {"password": self.password}

        async def run(self):
            import asyncio
            while not os.path.exists("GATE"):
                await asyncio.sleep(0.05)
            yield TriggerEvent(len(self.password))

    class Waits(BaseOperator):
        def execute(self, context):
            self.defer(trigger=Fires(password=Variable.get("api_token")), method_name="resume")

        def resume(self, context, event):
            return event

    with DAG("secrets"):

        @task
        def tells():
            secret = BaseHook.get_connection("db").password
            print("known:", secret, os.environ.get("ASYNSCHED_DATABASE"), os.environ.get("ASYNSCHED_FERNET_KEY"))
            raise ValueError(f"cannot log in with {secret}")

        @task
        def sees():
            ours = [name for name in os.environ if name.startswith("ASYNSCHED")]
            arguments = open("/proc/self/cmdline").read()
            return {"environment": ours, "arguments": arguments, "recursion": sys.getrecursionlimit()}

        tells(), sees(), Waits(task_id="waits")

    with DAG("hostile"):

        @task
        def attacks():
            home = get_current_context()["dag_run"].conf["home"]
            deep = b"[" * 100_000
            bodies = [
                b'{"type":"request","token":"t","request_id":1,"operation":"xcom_push","arguments":{"a":' + deep,
                b'{"type":"request","request_id":"x","operation":["\\xff"]}',
                b'{"type":"request","token":"t","request_id":2,"operation":"variable_set","arguments":{"key":[1],"value":{}}}',
                b'{"type":"request","token":"t","request_id":3,"operation":"trigger_outcomes","arguments":{"outcomes":7}}',
            ]
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
                for text in (deep, b"\\xff", b'[{"kind":"ping","dag_id":"\\xff"}]', b'[{"kind":"x"}]'):
                    bell.sendto(text[:60_000], home + "/bell.sock")
            for body in reversed(bodies):
                for descriptor in range(3, 64):
                    try:
                        with socket.socket(fileno=os.dup(descriptor)) as link:
                            link.setblocking(False)
                            link.sendall(len(body).to_bytes(4, "big") + body)
                    except OSError:
                        pass

        attacks()
"""


def test_secrets_stay_secret_and_a_hostile_task_harms_itself_only(site):
    gate = site.root / "gate"
    site.write("secrets.py", TASKS.replace("GATE", str(gate)))
    site.run("variables", "set", "api_token", SECRET)
    site.run("connections", "add", "db", "--conn-type", "postgres", "--conn-host", "h", "--conn-password", SECRET)
    with site.up() as up:
        site.wait_for_dag("secrets")
        site.run("dags", "trigger", "secrets", "--run-id", "one")
        site.until(lambda: site.task_states("secrets", "one").get("waits") == "deferred", "the task is deferred")
        # A task that attacks who serves it fails, and nothing else does.
        site.run(
            "dags",
            "trigger",
            "hostile",
            "--run-id",
            "one",
            "--conf",
            json.dumps({"home": str(site.home)}),
            "--wait",
            code=None,
        )
        assert site.task_states("hostile", "one") == {"attacks": "failed"}
        # The key is changed while a deferred task's secret waits.
        assert "are encrypted with the key" in site.run("db", "rotate-key").stdout
        at_rest = _everything_in(site.home) + up.log
        gate.touch()
        site.until(lambda: site.runs("secrets")[0]["state"] == "failed", "the run has ended")
        assert site.task_states("secrets", "one") == {"tells": "failed", "sees": "success", "waits": "success"}
        told = "".join(
            site.run(*command).stdout
            for command in (("why", "secrets", "one", "tells"), ("tasks", "logs", "secrets", "one", "tells"))
        )
        [seen] = site.json("tasks", "xcom", "secrets", "one", "sees")
        [length] = site.json("tasks", "xcom", "secrets", "one", "waits")
        at_rest += _everything_in(site.home) + up.log
    assert length["value"] == len(SECRET)
    assert seen["value"]["environment"] == []
    assert seen["value"]["recursion"] == sys.getrecursionlimit()
    assert "known: *** None None" in told
    assert "cannot log in with ***" in told
    assert [text for text in (told, seen["value"]["arguments"], at_rest) if SECRET in text] == []
    assert _open_to_others(site.home) == []


def test_another_key_is_refused_at_start_and_by_check_in_one_line(site):
    site.run("variables", "set", "api_token", SECRET)
    (site.home / "fernet.key").rename(site.root / "kept.key")
    for command in (("up", str(site.dags), "--until-idle"), ("variables", "get", "api_token"), ("check",)):
        refused = site.run(*command, code=1)
        assert f"the file {site.home / 'fernet.key'} has no key" in refused.stdout + refused.stderr
    site.env["ASYNSCHED_FERNET_KEY"] = (site.root / "kept.key").read_text().strip()
    assert site.json("variables", "get", "api_token")["value"] == SECRET
    assert "They are encrypted with the key" in site.run("check", code=None).stdout


def _everything_in(folder: Path) -> str:
    """Return the bytes of every file as one text, in which ASCII is readable."""
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


def _open_to_others(folder: Path) -> list[str]:
    """Return the paths in a folder that other users may reach."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & 0o077]


def without_landlock() -> None:
    """Make the kernel refuse Landlock to this process, as one that was built without it does."""
    load_number, is_landlock = (0x20, 0, 0, 0), (0x15, 0, 1, 444)
    refuse, allow = (0x06, 0, 0, 0x0005_0000 | errno.ENOSYS), (0x06, 0, 0, 0x7FFF_0000)
    program = b"".join(struct.pack("=HBBI", *step) for step in (load_number, is_landlock, refuse, allow))
    if os.getuid() == 0:
        become_ordinary()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(program)


def test_confinement_that_is_impossible_is_reported_or_refused_if_required(site):
    assert [row["ok"] for row in confinement_of(site)] == [True]
    if OLDER_ABIS:
        site.env |= with_landlock(OLDER_ABIS[-1], site.root / "older")
        [enforced, stricter] = confinement_of(site)
        assert f"landlock {OLDER_ABIS[-1]}, seccomp" in enforced["detail"]
        assert (stricter["ok"], "a parse may signal no process but itself" in stricter["detail"]) == (True, True)
        assert stricter["detail"] in site.up_until_idle().stderr
        del site.env["PYTHONPATH"]
    site.become = without_landlock
    assert [row["ok"] for row in confinement_of(site)] == [True, True, True]
    said = site.up_until_idle().stderr
    assert "this kernel has no Landlock" in said
    site.env["ASYNSCHED_PARSE__CONFINEMENT"] = "required"
    assert [row["ok"] for row in confinement_of(site)] == [True, False, True]
    refused = site.run("up", str(site.dags), "--until-idle", code=1).stderr
    assert "parse.confinement is required, but this machine cannot enforce it: this kernel has no Landlock" in refused


def confinement_of(site: Site) -> list[dict[str, Any]]:
    """Return `asynsched check`'s report of the confinement: enforced, missing and additional restrictions."""
    found = json.loads(site.run("check", "--output", "json", code=None).stdout)
    rows = [row for row in found if row["what"] == "confinement"]
    assert "seccomp, limits" in rows[0]["detail"]
    return rows
