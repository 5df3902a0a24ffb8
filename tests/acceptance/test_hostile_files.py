"""The corpus of hostile files, on a scheduler that serves others meanwhile: as an ordinary user, and as root."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.hostile_files import CORPUS, WITHOUT_LIMITS, Hostile, fill, write
from tests.support.older_kernels import OLDER_ABIS, with_landlock
from tests.support.up import Site
from tests.support.users import ORDINARY_UID, become_ordinary

COLD = True

ARCHIVES = {"bomb.zip", "traversal.zip"}
LEAKS = {"leak.py": "secret.txt", "linked_folder/private.py": ""}
"""DAG files that lie elsewhere, and the linked part of that place."""
OTHERS = """
    from asynsched import DAG, task

    with DAG("others"):

        @task
        def works():
            return "works"

        works()
"""
LIMITS = {
    "ASYNSCHED_PARSE__IMPORT_TIMEOUT": "4",
    "ASYNSCHED_PARSE__TIMEOUT": "20",
    "ASYNSCHED_PARSE__MEMORY_BYTES": str(300 * 1024**2),
    "ASYNSCHED_PARSE__RESULT_BYTES": str(4 * 1024**2),
    "ASYNSCHED_PARSE__MAX_PROCESSES": "16",
    "ASYNSCHED_PARSE__PROCESSES": "4",
    "ASYNSCHED_WATCH__SAFE_MODE": "false",
}
PATIENCE = {
    "ASYNSCHED_PARSE__IMPORT_TIMEOUT": "3600",
    "ASYNSCHED_PARSE__TIMEOUT": "3600",
    "ASYNSCHED_PARSE__CPU_SECONDS": "3600",
}
HANGING = ("infinite_loop", "signals_blocked", "sleeps")
"""As many as there are processes for parses, but one."""
TREASURE = "files that every user may write"
SECRET = "the_word_" + "is_mum"


class Attacked:
    """A scheduler that has parsed a corpus: its message about each file, and the fate of other files."""

    def __init__(self, site: Site, corpus: Mapping[str, Hostile], victim: "subprocess.Popen[bytes]") -> None:
        self.site = site
        self.corpus = corpus
        self.errors: dict[str, list[dict[str, Any]]] = {}
        self.runs: list[str] = []
        with site.up() as up:
            site.wait_for_dag("others")
            # Its first secret makes the key.
            site.run("variables", "set", "api_key", SECRET)
            victims = {
                "scheduler": up.process.pid, "victim": victim.pid, "home": str(site.home), "users_home": str(site.root),
                "treasure": str(site.root / "treasure"),
            }  # fmt: skip
            (site.dags / "victims.json").write_text(json.dumps(victims))
            fill(site.dags, site.root / "secret.txt", corpus)
            # Others are served while all of this is parsed.
            self.runs.append(self._run_others("during"))
            site.until(self._all_is_parsed, "every file of the corpus has its error", seconds=80)
            self.runs.append(self._run_others("after"))
            self.dags = {dag["dag_id"] for dag in site.json("dags", "list")}
            self.shown = site.run("dags", "errors").stdout + up.log
            self.lives = up.process.poll() is None and victim.poll() is None

    def _run_others(self, run_id: str) -> str:
        self.site.run("dags", "trigger", "others", "--run-id", run_id, "--wait")
        [run] = [run for run in self.site.runs("others") if run["run_id"] == run_id]
        return run["state"]

    def _all_is_parsed(self) -> bool:
        self.errors = {}
        for error in self.site.json("dags", "errors"):
            self.errors.setdefault(error["file"], []).append(error)
        known = {dag["file"] for dag in self.site.json("dags", "list")}
        files = {f"{name}.py" for name in self.corpus} | ARCHIVES | LEAKS.keys()
        return files <= self.errors.keys() | known


@pytest.fixture(
    scope="module",
    params=[
        *(["root"] if os.geteuid() == 0 else []),
        "ordinary user",
        *([f"ordinary user, Landlock {OLDER_ABIS[-1]}"] if OLDER_ABIS else []),
    ],
)
def attacked(request: pytest.FixtureRequest) -> Iterator[Attacked]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        site = Site(Path(folder), env=LIMITS)
        site.write("others.py", OTHERS)
        (site.root / "secret.txt").write_text(SECRET)
        (site.root / "treasure").write_text(TREASURE)
        (site.root / "treasure").chmod(0o666)
        corpus = CORPUS
        if "Landlock" in request.param:
            corpus = WITHOUT_LIMITS  # limits are no matter of Landlock
            site.env |= with_landlock(OLDER_ABIS[-1], site.root / "older")
        if request.param != "root" and os.geteuid() == 0:
            site.become = become_ordinary
            os.chown(site.root, ORDINARY_UID, ORDINARY_UID)
        with subprocess.Popen(["sleep", "1000"], preexec_fn=site.become) as victim:
            try:
                yield Attacked(site, corpus, victim)
            finally:
                victim.kill()
                site.end_everything()


def test_every_hostile_file_is_contained_and_told_what_it_may_not(attacked):
    wrong = {name: attacked.errors.get(f"{name}.py") for name in attacked.corpus if not _is_right(attacked, name)}
    assert wrong == {}


def _is_right(attacked: Attacked, name: str) -> bool:
    hostile, found = CORPUS[name], attacked.errors.get(f"{name}.py", [])
    if not hostile.kinds:
        return not found
    return (
        len(found) == 1
        and found[0]["kind"] in hostile.kinds
        and found[0]["message"].startswith(f"{name}.py")
        and "\n" not in found[0]["message"]
        and all(word in found[0]["message"] for word in hostile.words)
    )


def test_others_are_served_meanwhile_and_nobody_is_harmed(attacked):
    assert attacked.runs == ["success", "success"]
    assert attacked.lives
    harmless = {"left_open", "double_fork", "atexit_hangs", "thread_hangs", "kills_nobody", "ends_nobody"}
    assert {"others"} | harmless <= attacked.dags
    assert not {name for name in attacked.dags if "forged" in name or "/" in name}


def test_others_are_served_while_files_are_parsed_that_never_end(tmp_path):
    site = Site(tmp_path, env=LIMITS | PATIENCE)
    site.write("victims.json", "{}")
    site.write("others.py", OTHERS)
    with site.up():
        site.wait_for_dag("others")
        for name in HANGING:
            write(site.dags, name, CORPUS[name].text if name in CORPUS else "time.sleep(10_000)")

        def n_under_way() -> int:
            return len(list((site.home / "tmp").iterdir()))

        site.until(lambda: n_under_way() == len(HANGING), "all of them are being parsed")
        site.write("others.py", OTHERS.replace("others", "saved_meanwhile"))
        site.wait_for_dag("saved_meanwhile")
        site.run("dags", "trigger", "saved_meanwhile", "--run-id", "one", "--wait")
        assert [run["state"] for run in site.runs("saved_meanwhile")] == ["success"]
        # All of that was between their beginning and their end, which has not come yet.
        site.until(lambda: n_under_way() == len(HANGING), "they, and nothing else, are being parsed")
        assert site.json("dags", "errors") == []


def test_archives_are_contained(attacked):
    messages = {name: " ".join(error["message"] for error in attacked.errors[name]) for name in ARCHIVES}
    assert "is larger than 16 MiB" in messages["bomb.zip"]
    assert "leads out of the archive" in messages["traversal.zip"]


def test_links_out_of_the_dag_folder_are_refused_and_the_setting_is_named(attacked):
    for name, linked in LEAKS.items():
        [error] = attacked.errors[name]
        target = attacked.site.root / linked
        begin = f"{name}: cannot be read: {name.partition('/')[0]} is a link to {target}, out of the DAG folder"
        assert error["message"].startswith(begin)
        assert error["message"].endswith(f"add {target}, or a folder that it is in, to parse.readable")


def test_nothing_is_written_nothing_is_learnt_and_nothing_is_left(attacked):
    root = attacked.site.root
    written = [*root.rglob("climbed.py"), *root.rglob("was_here"), *root.rglob("new.py")]
    assert [*written, *Path("/tmp").glob("*was_here"), *Path("/tmp").glob("climbed.py")] == []
    assert (root / "treasure").read_text() == TREASURE
    assert SECRET not in json.dumps(attacked.errors)
    assert list((attacked.site.home / "tmp").iterdir()) == []


def test_what_a_file_says_does_not_steer_the_terminal(attacked):
    assert "error_that_steers_terminals.py" in attacked.shown
    assert [character for character in attacked.shown if not character.isprintable() and character != "\n"] == []
