"""Commands on a home that no scheduler serves: their answers and refusals."""

import json
import stat
import subprocess
import sys

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from asynsched.cli.app import build_app
from asynsched.home import hold_home
from asynsched.store.engines.opening import open_direct
from tests.acceptance.idle_site import DAGS, make_idle_site
from tests.store.test_retention import add_dag, add_run
from tests.support.up import Site

DATABASES = ("sqlite",)


@pytest.fixture(scope="module")
def site(new_site) -> Site:
    return make_idle_site(new_site)


def test_a_command_that_reads_makes_nothing_and_says_where_it_looked(new_site):
    site = new_site()
    reads = (
        ("dags", "list"), ("dags", "show", "etl"), ("dags", "next", "etl"), ("dags", "errors"), ("runs", "list"),
        ("runs", "show", "etl", "latest"), ("tasks", "list", "etl", "latest"), ("why", "etl"), ("why",),
        ("pools", "list"), ("variables", "list"), ("connections", "list"), ("assets", "list"), ("schedulers", "list"),
        ("backfill", "list", "etl"),
    )  # fmt: skip
    changes = (("pools", "delete", "p"), ("dags", "pause", "etl"), ("db", "rotate-key"), ("db", "clean", "--keep", "1"))
    site.dags.rmdir()
    for command in (*reads, *changes):
        told = site.run(*command, "-o", "json", code=1)
        assert f"the home {site.home} (environment variable ASYNSCHED_HOME) does not exist yet" in told.stderr
        assert "--home or ASYNSCHED_HOME" in told.stderr
    elsewhere = f"sqlite:///{site.root / 'none' / 'a.db'}"
    told = site.run("dags", "list", "--database", elsewhere, code=1).stderr
    assert f"the database {elsewhere} (flag --database) does not exist yet" in told
    assert (
        f"the folder {site.root / 'none'} does not exist"
        in site.run("pools", "set", "p", "1", "--database", elsewhere, code=1).stderr
    )
    assert list(site.root.iterdir()) == []
    site.home.mkdir()
    assert f"the home {site.home} (env" in site.run("dags", "list", code=1).stderr
    assert list(site.home.iterdir()) == []


def test_a_new_folder_is_kept_only_by_commands_that_change_something(new_site):
    site = new_site()
    site.write("some.py", DAGS)
    assert len(site.json("dags", "next", "etl", "-n", "4")) == 4
    for command in (("dags", "show", "etl"), ("why", "etl"), ("dags", "test", "etl"), ("backfill", "list", "etl")):
        assert "Reading the DAG folder" in site.run(*command).stderr
    unknown = site.run("dags", "show", "nothing", code=1).stderr
    assert f"There is no DAG 'nothing'. Looked in the DAG folder {site.dags}." in unknown
    wrong = site.write("wrong.py", "from asynsched import DAG\nDAG('other', catchup=0)\n")
    unusable = site.run("dags", "show", "other", code=1).stderr
    assert "1 DAG file has errors: wrong.py:2: DAG 'other': catchup" in unusable, "no other message would show that"
    wrong.unlink()
    assert [path.name for path in site.root.iterdir()] == ["dags"]
    assert f"Made the home {site.home}." in site.run("dags", "pause", "etl").stderr
    assert [dag["dag_id"] for dag in site.json("dags", "list")] == ["broken", "etl"]
    assert stat.S_IMODE(site.home.stat().st_mode) == 0o700


def test_a_command_waits_while_another_process_reads_the_folder(new_site):
    site = new_site()
    site.write("some.py", DAGS)
    site.run("db", "upgrade")
    shows = subprocess.Popen(
        site.command("dags", "show", "etl"), env=site.environment, cwd=site.root, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with hold_home(site.home), shows:  # as a scheduler does that is about to serve
        assert "Reading the DAG folder" in shows.stderr.readline()
        other_home = site.environment | {"ASYNSCHED_HOME": str(site.root / "other")}
        reads = [*site.command("dags", "reparse", "some.py"), "--database", f"sqlite:///{site.home / 'asynsched.db'}"]
        subprocess.run(reads, env=other_home, cwd=site.root, check=True, capture_output=True, timeout=60)
        # Not by `communicate`, which does not know the bytes that were read beyond the first line.
        said, shown = shows.stderr.read(), shows.stdout.read()
    assert shows.returncode == 0, said
    assert [line.endswith("waiting for the result.") for line in said.splitlines()] == [True]
    assert "etl" in shown


def test_db_clean_shows_then_deletes_by_its_options_or_the_settings(new_site):
    site = new_site()
    site.run("db", "upgrade")
    with open_direct(f"sqlite:///{site.home / 'asynsched.db'}") as database:
        database.write(add_dag, "d")
        for day in range(8):
            database.write(add_run, "d", day)
            (site.home / "logs" / "dag_id=d" / f"run_id=r{day}").mkdir(parents=True)
    assert "--before" in site.run("db", "clean", code=1).stderr
    before = ("db", "clean", "--before", "2026-02-23")
    assert "1 run" in site.run(*before, "--dry-run").stdout
    assert "give --yes" in site.run(*before, code=1).stderr
    assert site.json(*before, "--yes")["deleted"] == {"runs": 1}
    assert site.json("db", "clean", "--keep", "5", "--only", "xcoms", "-y")["deleted"] == {"xcoms": 2}
    site.env["ASYNSCHED_RETENTION__RUNS_PER_DAG"] = "4"
    assert "keep xcoms" in site.run("db", "clean", "--only", "xcoms", "-y", code=1).stderr
    assert site.json("db", "clean", "-y")["deleted"] == {"runs": 3}
    assert sorted(run["run_id"] for run in site.runs("d")) == ["r0", "r1", "r2", "r3"]
    assert len(list((site.home / "logs" / "dag_id=d").iterdir())) == 4


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("dags", "show", "elt"), 1, ("elt", "Did you mean etl")),
        (("dags", "pause", "broke"), 1, ("Did you mean broken",)),
        (("runs", "list", "elt"), 1, ("Did you mean etl",)),
        (("runs", "show", "etl", "nowhere"), 1, ("no run 'nowhere'",)),
        (("tasks", "list", "etl", "nowhere"), 1, ("no run 'nowhere'",)),
        (("tasks", "logs", "etl", "nowhere", "x"), 1, ("no run 'nowhere'",)),
        (("pools", "delete", "defaultpool"), 1, ("Did you mean default_pool",)),
        (("pools", "delete", "default_pool"), 1, ("default_pool",)),
        (("variables", "get", "nothing"), 1, ("no variable 'nothing'",)),
        (("connections", "get", "nothing"), 1, ("no connection 'nothing'",)),
        (("connections", "add", "c", "--conn-uri", "nonsense"), 1, ("type://login",)),
        (("db", "check", "--database", f"sqlite:///{'x' * 300}"), 1, ("cannot be reached: File name too long",)),
        (("dags", "list", "--database", f"sqlite:///{'x' * 300}"), 1, ("cannot be reached: File name too long",)),
        (("pools", "set", "p", "1", "--home", "x" * 300), 1, ("File name too long",)),
        (("dags", "show", "\udcff"), 2, ("not UTF-8", "udcff")),
        (("tasks", "clear", "etl", "r", "a", "\udcff"), 2, ("not UTF-8", "udcff")),
        (("backfill", "show", "9" * 20), 2, ("ID", "9" * 20)),
        (("connections", "add", "bad id", "--conn-type", "http"), 1, ("letters, digits", "'bad id'")),
        (("connections", "add", "x" * 251, "--conn-type", "http"), 1, ("1 to 250 characters, not 251",)),
        (("variables", "import", "/no/such/file"), 1, ("/no/such/file",)),
        (("dag", "list"), 2, ("Did you mean 'dags'",)),
        (("dags", "lst"), 2, ("'list'",)),
        (("dags", "list", "--outptu", "json"), 2, ("--output",)),
        (("dags", "list", "--output", "xml"), 2, ("table", "json")),
        (("pools", "set", "p", "many"), 2, ("many",)),
        (("pools", "set", "p", "--", "-2"), 2, ("-2",)),
        (("dags", "next", "etl", "--now", "soon"), 2, ("--now", "soon", "ISO 8601")),
        (("dags", "next", "etl", "--last-run", "2026-01-01"), 2, ("--last-run", "START/END")),
        (("dags", "trigger", "etl", "--conf", "[1]"), 2, ("'[1]' is not a JSON object", """--conf '{"n": 4}'""")),
        (("dags", "trigger", "etl", "-c", "n=4"), 2, ("'n=4' is not a JSON object;", """--conf '{"n": 4}'""")),
        (("dags", "trigger", "etl", "-c", "to=me, too"), 2, ("""--conf '{"to": "me, too"}'""",)),
        (("dags", "trigger", "etl", "-c", "{n: 4}"), 2, ("is not a JSON object (JSON is malformed", "byte 1")),
        (("dags", "trigger", "etl", "-c", '{"n": 4'), 2, ("is not a JSON object (", """--conf '{"n": 4}'""")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_mistakes_are_named_in_one_message_with_the_nearest_name(site, monkeypatch, command, code, words):
    monkeypatch.chdir(site.root)
    refused = CliRunner().invoke(build_app(), command, env=site.environment, prog_name="asynsched")
    assert (refused.exit_code, refused.stdout) == (code, ""), refused.output
    assert [word for word in words if word not in refused.stderr] == []
    assert "Traceback" not in refused.stderr


def test_pools_are_set_listed_and_deleted(site):
    site.run("pools", "set", "small", "3", "--description", "few")
    site.run("pools", "set", "endless", "-1")
    pools = {pool["name"]: pool["slots"] for pool in site.json("pools", "list")}
    assert pools == {"default_pool": 128, "small": 3, "endless": -1}
    site.run("pools", "set", "small", "4", "--include-deferred")
    [small] = [pool for pool in site.json("pools", "list") if pool["name"] == "small"]
    assert (small["slots"], small["description"], small["include_deferred"]) == (4, "few", True)
    site.run("pools", "delete", "small")
    assert "small" not in site.run("pools", "list").stdout


def test_variables_are_kept_and_secret_ones_are_not_listed(site, tmp_path):
    site.run("variables", "set", "plain", "line 1\nline 2", "--description", "two\nlines")
    site.run("variables", "set", "api_token", "hunter2")
    listed = {row["key"]: row["value"] for row in site.json("variables", "list")}
    assert listed == {"plain": "line 1\nline 2", "api_token": "***"}
    assert "hunter2" not in site.run("variables", "list").stdout
    assert site.json("variables", "get", "api_token")["value"] == "hunter2"
    exported = tmp_path / "variables.json"
    site.run("variables", "export", str(exported))
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    content = json.loads(exported.read_text())
    assert content == {"api_token": "hunter2", "plain": {"value": "line 1\nline 2", "description": "two\nlines"}}
    site.run("variables", "delete", "plain")
    exported.write_text(json.dumps(content | {"structured": {"x": 1}}))
    site.run("variables", "import", str(exported))
    assert site.json("variables", "get", "plain")["description"] == "two\nlines"
    assert json.loads(site.json("variables", "get", "structured")["value"]) == {"x": 1}


def test_passwords_of_connections_are_shown_by_export_alone(site, tmp_path):
    site.run("connections", "add", "db", "--conn-uri", "postgres://me:hunter2@host:5432/shop?api_key=hunter3")
    site.run("connections", "add", "db", "--conn-type", "http", code=1)
    given = subprocess.run(
        site.command("connections", "add", "web", "--conn-type", "http", "--conn-password", "-"),
        input="hunter4\n", env=site.environment, cwd=site.root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    shown = given.stdout + site.run("connections", "list").stdout + str(site.json("connections", "get", "db"))
    assert "hunter" not in shown
    assert site.json("connections", "get", "db").items() >= {"host": "host", "port": 5432, "password": "***"}.items()
    exported = json.loads(site.run("connections", "export", "-").stdout)
    assert (exported["db"]["password"], exported["web"]["password"]) == ("hunter2", "hunter4")
    file = tmp_path / "connections.json"
    file.write_text(json.dumps({"uri": "http://u:p@h/s", **exported}))
    site.run("connections", "delete", "db")
    site.run("connections", "import", str(file))
    assert [row["conn_id"] for row in site.json("connections", "list")] == ["db", "uri", "web"]


def test_where_the_key_is_lost_secrets_are_named_and_can_be_set_again(new_site):
    site = new_site()
    site.run("variables", "set", "plain", "1")
    site.run("connections", "add", "db", "--conn-uri", "postgres://me:hunter2@host/shop")
    site.run("db", "rotate-key", "--lost", "--yes", code=1)  # it is not
    (site.home / "fernet.key").unlink()
    listed = site.run("variables", "list", "--output", "json")
    assert listed.json == [{"key": "plain", "value": None, "description": ""}]
    assert "`asynsched db rotate-key --lost`" in listed.stderr
    [connection] = site.json("connections", "list")
    assert (connection["conn_id"], connection["conn_type"], connection["host"]) == ("db", "postgres", None)
    lost = [{"kind": "connection", "name": "db"}, {"kind": "variable", "name": "plain"}]
    assert site.json("db", "rotate-key", "--lost", "--dry-run") == lost
    assert "give --yes" in site.run("db", "rotate-key", "--lost", code=1).stderr
    assert site.json("db", "rotate-key", "--lost", "--yes")["lost"] == lost
    site.run("variables", "set", "plain", "2")
    assert [row["value"] for row in site.json("variables", "list")] == ["2"]
    assert site.json("connections", "list") == []


def test_settings_are_shown_with_their_source_and_without_secrets(site):
    site.env["ASYNSCHED_PARSE__TIMEOUT"] = "12"
    (site.root / "asynsched.toml").write_text('[watch]\nstep = 0.01\n[dask]\naddress = "tcp://me:hunter2@host:8786"\n')
    shown = site.run("config", "show", "--output", "json", "--database", "postgresql://me:hunter2@host/db")
    del site.env["ASYNSCHED_PARSE__TIMEOUT"]
    (site.root / "asynsched.toml").unlink()
    settings = {row["name"]: row for row in shown.json}
    assert settings["parse.timeout"]["value"] == 12
    assert "ASYNSCHED_PARSE__TIMEOUT" in settings["parse.timeout"]["source"]
    assert settings["watch.step"]["source"].endswith("asynsched.toml, line 2")
    assert settings["database"]["source"] == "flag --database"
    assert settings["lease.grace"]["source"] == "default"
    assert settings["dags_folder"]["value"] == str(site.dags)
    assert settings["dask.address"]["value"] == "tcp://me:***@host:8786"
    assert "hunter2" not in shown.stdout


def test_a_misspelt_setting_is_an_error_in_the_environment_as_in_the_file(site):
    site.env["ASYNSCHED_PARALELISM"] = "12"
    by_variable = site.run("config", "show", code=1).stderr
    del site.env["ASYNSCHED_PARALELISM"]
    (site.root / "asynsched.toml").write_text("paralelism = 12\n")
    by_file = site.run("config", "show", code=1).stderr
    (site.root / "asynsched.toml").unlink()
    assert by_variable.endswith("ASYNSCHED_PARALELISM: there is no such setting. Did you mean ASYNSCHED_PARALLELISM?\n")
    assert by_file.endswith("asynsched.toml, line 1: there is no setting 'paralelism'. Did you mean parallelism?\n")


def test_a_machine_is_checked(site):
    findings = {finding["what"]: finding for finding in site.json("check")}
    assert set(findings) >= {"python", "platform", "confinement", "file events", "database"}
    assert "landlock" in findings["confinement"]["detail"]
    assert "seccomp" in findings["confinement"]["detail"]
    unfit = site.run("check", "--database", "postgresql://me:hunter2@127.0.0.1:1/db", code=1)
    assert "database" in unfit.stderr
    assert "hunter2" not in unfit.stdout + unfit.stderr
    assert site.json("version")["asynsched"] == site.run("--version").stdout.strip()


def test_the_schema_is_checked_and_upgraded(new_site):
    site = new_site()
    assert "`asynsched db upgrade` creates it" in site.run("db", "check", code=1).stderr
    site.run("db", "upgrade")
    site.run("db", "check")
    assert site.json("db", "upgrade")["from"] == site.json("db", "check")["head"]
    with open_direct(f"sqlite:///{site.home}/asynsched.db") as database:
        database.write(lambda conn: conn.execute(sa.text("UPDATE alembic_version SET version_num = '0999'")))
    assert "A newer asynsched has migrated it: use that one." in site.run("db", "check", code=1).stderr
    assert "is left as it is" in site.run("db", "upgrade").stdout
    site.run("db", "upgrade", "--home", "elsewhere", "--database", "sqlite:///no/folder/is.db", code=1)
    assert not (site.root / "elsewhere").exists(), "a failure leaves no home behind"


def test_reading_commands_load_nothing_that_they_do_not_need(site):
    site.run("db", "upgrade", "--database", "sqlite:///light.db")
    program = "import sys; from asynsched.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run(
        [sys.executable, "-c", program, "runs", "list", "--output", "json", "--database", "sqlite:///light.db"],
        env=site.environment, cwd=site.root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    loaded = {name.split(".")[0] for name in ended.stderr.split()}
    heavy = {"alembic", "aiosqlite", "asyncpg", "croniter", "jinja2", "pydantic", "rich", "structlog"}
    assert loaded & (heavy | {"watchfiles", "inotify_simple"}) == set()
    assert "sqlalchemy.orm" not in ended.stderr.split()


def test_old_runs_are_deleted_with_their_logs_when_that_is_confirmed(new_site):
    site = new_site()
    site.write(
        "once.py",
        """
        from asynsched import DAG, BashOperator

        with DAG("once", schedule="@once"):
            BashOperator(task_id="echo", bash_command="echo done")
        """,
    )
    site.run("dags", "trigger", "once", "--run-id", "by_hand")
    site.up_until_idle()
    by_hand, scheduled = sorted(site.runs("once"), key=lambda run: run["run_id"])
    [log] = site.home.glob("logs/dag_id=once/run_id=by_hand/**/*.log")
    assert site.json("db", "clean", "--before", by_hand["queued_at"], "--yes")["deleted"] == {}
    assert site.json("db", "clean", "--before", "2100-01-01", "--dry-run")["found"]["runs"] == 1
    site.run("db", "clean", "--before", "2100-01-01", code=1)
    assert site.json("db", "clean", "--before", "2100-01-01", "--yes")["deleted"] == {"runs": 1}
    assert site.runs("once") == [scheduled], "a DAG that is to run once would run again"
    assert not log.exists()


def test_a_reader_that_leaves_ends_a_command_quietly(site):
    program = f"{sys.executable} -m asynsched config show --output json | head -c 1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", program], env=site.environment, cwd=site.root, check=False, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr) == ("[", "")
    assert ended.returncode in {0, 1}, "0: all was written before the reader left"
