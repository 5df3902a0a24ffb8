"""`asynsched preview`: the effect of a new state of the DAG folder, before it is live."""

import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator

import pytest

from tests.support.up import Site

DATABASES = ("sqlite",)

BEFORE = {
    "etl.py": """
        from datetime import datetime
        from asynsched import Asset, BashOperator, DAG
        import shared

        with DAG("etl", schedule="@hourly", start_date=datetime(2020, 1, 1)):
            BashOperator(task_id="a", bash_command="") >> BashOperator(task_id="b", bash_command="")
        with DAG("makes"):
            BashOperator(task_id="only", bash_command="", outlets=[Asset("result")])
        with DAG("waits", schedule=[Asset("result")]):
            BashOperator(task_id="only", bash_command="")
    """,
    "shared.py": "X = 1\n",
    "stays.py": """
        from random import random
        from asynsched import DAG, EmptyOperator

        with DAG("stays", description=f"differs in each parse: {random()}"):
            EmptyOperator(task_id="only")
    """,
}
AFTER = {
    "etl.py": """
        from datetime import datetime
        from asynsched import Asset, BashOperator, DAG
        import shared

        with DAG("etl", schedule="0 6 * * *", start_date=datetime(2020, 1, 1), tags=["`|@all"]):
            BashOperator(task_id="a", bash_command="", retries=2) >> BashOperator(
                task_id="c", bash_command="", pool="narrow"
            )
        with DAG("waits", schedule=[Asset("result")]):
            BashOperator(task_id="only", bash_command="")
        with DAG("new", schedule="@hourly", is_paused_upon_creation=True):
            BashOperator(task_id="only", bash_command="")
    """,
    "shared.py": "X = 2\n",
    "stays.py": """
        from asynsched import DAG, EmptyOperator

        with DAG("stays"
            EmptyOperator(task_id="only")
    """,
}


def git(site: Site, *words: str) -> str:
    """Run Git in the folder of a site."""
    identity = {name: "tests@example.com" for role in ("AUTHOR", "COMMITTER")
                for name in (f"GIT_{role}_EMAIL", f"GIT_{role}_NAME")}  # fmt: skip
    nothing = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(
        ["git", *words], cwd=site.root, check=True, capture_output=True, text=True, env=os.environ | identity | nothing
    ).stdout


def commit(site: Site, name: str, files: dict[str, str]) -> None:
    """Commit a state of the DAG folder as a branch of that name."""
    for path, text in files.items():
        site.write(path, text)
    git(site, "checkout", "--quiet", "-b", name)
    git(site, "add", "dags")
    git(site, "commit", "--quiet", "--message", name)


@pytest.fixture(scope="module")
def prepared(request, tmp_path_factory) -> Iterator[Callable[[str], Site]]:
    """Return a function that returns a site with that kind of database, always the same.

    Its folder is that of the branch `before`, which the database has, too; the branch `after` changes it.
    """
    sites: dict[str, Site] = {}

    def prepare(kind: str) -> Site:
        if kind not in sites:
            database = request.getfixturevalue("new_postgres_database")() if kind == "postgresql" else None
            sites[kind] = Site(tmp_path_factory.mktemp("site"), database)
            fill(sites[kind])
        return sites[kind]

    yield prepare
    for site in sites.values():
        site.end_everything()


def fill(site: Site) -> None:
    git(site, "init", "--quiet")
    hook = site.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hook-has-run\n")
    commit(site, "before", BEFORE)
    commit(site, "after", AFTER)
    git(site, "checkout", "--quiet", "before")
    site.up_until_idle()
    hook.chmod(0o755)


@pytest.fixture
def site(prepared) -> Site:
    return prepared("sqlite")


@pytest.fixture(params=["sqlite", "postgresql"])
def site_of_each(prepared, request) -> Site:
    return prepared(request.param)


def preview(site: Site, *words: str, code: int = 0):
    return site.run("preview", "--output", "json", *words, code=code).json


def test_a_commit_is_compared_with_the_dags_of_the_database(site_of_each):
    site = site_of_each
    site.run("dags", "pause", "waits")
    run = site.json("dags", "trigger", "waits")["run_id"]
    told = preview(site, "after", code=3)
    [failing] = told["failing"]
    assert (failing["file"], failing["line"], failing["keeps"], failing["is_new"]) == ("stays.py", 4, ["stays"], True)
    assert "SyntaxError" in failing["message"]
    assert [dag["dag_id"] for dag in told["removed"]] == ["makes"]
    assert [(dag["dag_id"], dag["is_paused"]) for dag in told["added"]] == [("new", True)]
    etl, waits = told["changed"]
    code = ["code of etl.py", "code of shared.py"]
    assert (waits["reasons"], etl["reasons"]) == (code, ["schedule", "tasks", "edges", "tags", *code])
    assert (etl["tasks_added"], etl["tasks_removed"]) == (["c"], ["b"])
    assert [(task["task_id"], task["fields"]) for task in etl["tasks_changed"]] == [
        ("a", [{"field": "retries", "before": 0, "after": 2}])
    ]
    schedules = {schedule["dag_id"]: schedule for schedule in told["schedules"]}
    assert schedules.keys() == {"etl", "new"}
    assert {run[11:16] for run in schedules["etl"]["after"]["run_after"]} == {"06:00"}
    [lost] = told["lost_assets"]
    assert (lost["name"], lost["producers"], lost["consumers"]) == ("result", ["makes.only"], ["waits"])
    assert told["missing_pools"] == [{"pool": "narrow", "tasks": ["etl.c"]}]
    assert (told["load"]["runs_before"], told["load"]["runs_after"]) == (24, 1)
    assert told["n_unchanged"] == 1
    assert told["active_runs"] == [
        {"dag_id": "waits", "run_id": run, "state": "queued", "version": None, "is_removed": False}
    ]


def test_the_repository_stays_as_it_is(site):
    before = git(site, "status", "--porcelain", "--branch"), git(site, "worktree", "list")
    preview(site, "after", "--hours", "0", code=3)
    assert (git(site, "status", "--porcelain", "--branch"), git(site, "worktree", "list")) == before
    assert not (site.root / "hook-has-run").exists()


def test_the_live_folder_comments_and_random_values_change_nothing(site):
    plain = site.run("preview", str(site.dags), "--hours", "0")
    assert plain.stderr.endswith("Nothing changes.\n")
    commented = site.root / "commented"
    commented.mkdir()
    for path, text in BEFORE.items():
        site.write(f"../commented/{path}", textwrap.dedent(text) + "\n# more\n")
    told = preview(site, "commented", "--hours", "0")
    assert (told["changed"], told["n_unchanged"], told["load"]) == ([], 4, None)


def test_the_exit_code_is_3_for_the_problems_that_the_user_names(site):
    for fail_on, hours, code, told in (
        ("nothing", "0", 0, ""),
        ("deadlines,failed", "1", 0, ""),
        ("errors, pools", "0", 3, "Error: 1 error of DAG files, 1 pool missing (--fail-on errors,pools).\n"),
    ):
        assert site.run("preview", "after", "--hours", hours, "--fail-on", fail_on, code=code).stderr == told


def test_a_pool_that_will_exist_is_not_missing(site):
    ended = site.run("preview", "after", "--hours", "0", "--pool", "narrow=3", "--fail-on", "pools")
    assert "pools_missing" not in ended.stdout


def test_markdown_keeps_texts_of_dag_files_in_code_and_draws_the_change(site):
    told = site.run("preview", "after", "--output", "markdown", code=3).stdout
    assert r"| `etl` | `tags` |  | `'\|@all` |" in told
    [picture] = [part.partition("```")[0] for part in told.split("```mermaid\n")[1:]]
    assert {line.strip() for line in picture.splitlines()} >= {
        'n0["~ a"]:::changed', 'n1["+ c"]:::added', 'n2["- b"]:::removed', "n0 ==> n1", "n0 -.-> n2",
    }  # fmt: skip
    assert "- ⚠️ 1 pool missing" in told
    drawn = site.run("preview", "after", "--hours", "0", "--output", "dot", code=3).stdout
    assert '"a" -> "c" [color="#1a7f37", style=bold]' in drawn


def test_two_commits_are_compared_where_there_is_no_home(tmp_path):
    site = Site(tmp_path)
    git(site, "init", "--quiet")
    (tmp_path / "include").mkdir()
    helper = tmp_path / "include" / "words.py"
    helper.write_text("NAME = 'one'\n")
    git(site, "add", "include")
    commit(site, "one", {"d.py": "from asynsched import DAG\nfrom include.words import NAME\ndag = DAG(NAME)\n"})
    helper.write_text("NAME = 'two'\n")
    git(site, "commit", "--quiet", "--all", "--message", "two")
    told = preview(site, "HEAD", "--against", "HEAD~1")
    assert ([dag["dag_id"] for dag in told["added"]], [dag["dag_id"] for dag in told["removed"]]) == (["two"], ["one"])
    assert told["missing_pools"] == []
    assert preview(site, "dags", "--against", "HEAD")["n_unchanged"] == 1
    assert not site.home.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("dags",), "There is nothing to compare with: the home {root}/home has no database."),
        (("nowhere", "--against", "dags"), "the repository {root} has no commit of that name"),
        (("--against", "dags", "--", "-x"), "the repository {root} has no commit of that name"),
        (("empty", "--against", "dags"), "The commit 'empty' has no folder dags/"),
        (("linked", "--against", "dags"), "In the commit 'linked', dags/ is a link that leads out of the repository."),
    ],
)
def test_what_cannot_be_compared_is_told_in_one_line(tmp_path, words, told):
    site = Site(tmp_path)
    git(site, "init", "--quiet")
    git(site, "commit", "--quiet", "--allow-empty", "--message", "nothing")
    git(site, "tag", "empty")
    (tmp_path / "target").write_text("/etc")
    link = git(site, "hash-object", "-w", "target").strip()
    git(site, "update-index", "--add", "--cacheinfo", f"120000,{link},dags")
    git(site, "commit", "--quiet", "--message", "a link")
    git(site, "tag", "linked")
    git(site, "reset", "--quiet", "empty")
    commit(site, "one", {"d.py": "from asynsched import DAG\ndag = DAG('d')\n"})
    ended = site.run("preview", *words, code=1)
    assert told.format(root=tmp_path) in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_files_of_a_commit_do_not_show_secrets_of_the_installation(tmp_path):
    site = Site(tmp_path)
    site.env["ASYNSCHED_PARSE__READABLE"] = str(tmp_path)
    git(site, "init", "--quiet")
    (cfg := tmp_path / "airflow.cfg").write_text("[smtp]\nsmtp_password = of the commit\n")
    git(site, "add", "airflow.cfg")
    reads = f"from asynsched import DAG\nraise RuntimeError('found ' + open({str(cfg)!r}).read())\n"
    commit(site, "evil", {"evil.py": reads})
    cfg.write_text("[smtp]\nsmtp_password = hunter22\n")
    site.write("../other/good.py", "from asynsched import DAG\nDAG('good')\n")
    for where in ("evil", str(site.dags)):
        told = site.run("preview", where, "--against", str(tmp_path / "other"), "--hours", "0", code=3).stdout
        assert "PermissionError" in told, told
        assert "hunter22" not in told


def test_a_folder_in_no_repository_knows_no_commit(tmp_path):
    site = Site(tmp_path)
    ended = site.run("preview", "main", "--against", "dags", code=1)
    assert f"There is no folder 'main', and the DAG folder {site.dags} is in no Git repository" in ended.stderr


def test_a_submodule_stays_as_it_is_and_is_told(tmp_path):
    site = Site(tmp_path / "site")
    other = Site(tmp_path / "other")
    git(other, "init", "--quiet")
    commit(other, "main", {"there.py": BEFORE["stays.py"]})
    git(site, "init", "--quiet")
    commit(site, "before", BEFORE)
    git(site, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.root), "dags/sub")
    git(site, "config", "submodule.recurse", "true")
    git(site, "commit", "--quiet", "--message", "with a submodule")
    refused = site.run("preview", "before", "--against", str(site.dags), code=1).stderr
    assert "does not have the files of its submodules (dags/sub): check it out with them" in refused
    assert git(site, "status", "--short") == ""
