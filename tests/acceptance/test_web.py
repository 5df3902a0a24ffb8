"""The page as users begin with it: the link of `asynsched up`, `asynsched web`, HTTPS, and users."""

import json
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.support.authority import Authority
from tests.support.up import Site, words_of
from tests.support.waiting import DEADLINE_SECONDS

DATABASES = ("postgresql",)

ONE = """
    from asynsched import DAG, task

    with DAG("one", access_control={"team": {"can_read", "can_edit"}}):

        @task
        def one():
            return 1

        one()

    with DAG("two"):
        ...
"""
LINK = re.compile(r"(https?://\S+)/login\?key=(\S+)")
PASSWORD = "correct horse battery"
OF_A_PAGE = {"accept": "text/html"}


@pytest.fixture
def site(new_site) -> Site:
    """A site whose page has a free port."""
    made = new_site()
    made.write("one.py", ONE)
    made.env["ASYNSCHED_WEB__LISTEN"] = "127.0.0.1:0"
    return made


class Client(httpx.Client):
    """A client that is as patient as the other waits of these tests."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(base_url=url, timeout=DEADLINE_SECONDS, **options)


def link_of(site: Site, log: Path | None = None) -> tuple[str, str]:
    """Return the URL that a process has printed, and the key of its link."""
    text = (log or site.logs[-1]).read_text
    found = site.until(lambda: LINK.search(text()), "the link is printed")
    return found[1], found[2]


@contextmanager
def serving(site: Site, *flags: str) -> Iterator[tuple[str, str]]:
    """Run `asynsched web` until the end of the block. Yields its URL and the key of its link."""
    log = site.root / f"web-{len(site.logs)}.log"
    site.logs.append(log)
    with log.open("wb") as output:
        process = subprocess.Popen(
            site.command("web", *flags), cwd=site.root, env=site.environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield link_of(site, log)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def with_password(site: Site, *args: str, password: str = PASSWORD) -> str:
    """Run a command that reads a password."""
    ended = subprocess.run(
        site.command(*args, "--password-stdin"), cwd=site.root, env=site.environment, input=f"{password}\n",
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return ended.stdout


def test_the_link_of_up_signs_in_once_and_the_page_ends_with_the_scheduler(site):
    with site.up() as up:
        url, key = link_of(site)
        site.wait_for_dag("one")
        with Client(url) as browser, Client(url) as other:
            assert browser.get("/api/v2/dags/one").status_code == 401
            assert browser.get("/login", params={"key": key}).status_code == 303
            assert browser.get("/api/v2/dags/one").json()["dag_id"] == "one"
            assert other.get("/login", params={"key": key}).status_code == 401
            assert other.get("/", headers=OF_A_PAGE).headers["location"].startswith("/login")
            [session] = site.json("users", "sessions")
            site.run("users", "end-session", str(session["id"]))
            assert browser.get("/api/v2/dags/one").status_code == 401
            again = LINK.search(site.run("users", "link").stdout)
            assert again
            assert (other.get("/login", params={"key": again[2]}).status_code, again[1]) == (303, url)
            # A stream that has no end does not hold the stop.
            with other.stream("GET", "/api/asynsched/v1/events") as stream:
                assert stream.status_code == 200, stream.read()
                up.interrupt()
                assert up.wait() == 0
        assert "Traceback" not in up.log
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
    stored = site.run("db", "check").stdout
    assert key not in stored


def test_the_page_of_up_starts_again_and_ends_with_a_killed_scheduler(site):
    with site.up() as up:
        url, key = link_of(site)
        assert page_processes(site) == []
        with Client(url) as browser:
            assert browser.get("/login", params={"key": key}).status_code == 303
            cookies = dict(browser.cookies)
        [page] = page_processes(site)
        assert not [name for name in page.environ() if name.startswith("ASYNSCHED_")]
        page.kill()
        with Client(url, cookies=cookies) as browser:
            assert browser.get("/dags", headers=OF_A_PAGE).status_code == 200
            assert browser.get("/login", params={"key": key}).status_code == 401
        assert "web.failed" in up.log
        up.kill()
        site.until(lambda: page_processes(site) == [], "the page has ended")
    with closing(socket.socket()) as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", urlsplit(url).port))


def page_processes(site: Site) -> list[psutil.Process]:
    """Return the processes that serve the page."""
    return [one for one in site.processes() if "asynsched.cli.page_process" in words_of(one)]


def test_an_address_that_is_taken_is_told_at_the_start(site):
    with closing(socket.socket()) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        site.env["ASYNSCHED_WEB__LISTEN"] = address
        ended = site.run("up", str(site.dags), "--until-idle", code=1)
        assert f"web.listen: cannot listen on '{address}'" in ended.stderr


def test_web_serves_beside_a_scheduler_and_after_it_by_users_and_tokens(site):
    with site.up():
        site.wait_for_dag("one")
    with_password(site, "users", "create", "tess", "--role", "team")
    [user] = site.json("users", "list")
    assert (user["name"], user["roles"], user["sign_in"]) == ("tess", ["team"], "password")
    token = site.json("tokens", "create", "--user", "tess", "--dag", "one", "--days", "2")
    # The other one has no home yet, as on a machine without a scheduler.
    database = site.database or f"sqlite:///{site.home / 'asynsched.db'}"
    elsewhere = ("--home", str(site.root / "elsewhere"), "--database", database)
    with serving(site) as (url, _), serving(site, *elsewhere) as (second, _):
        with Client(second, headers={"authorization": f"Bearer {token['token']}"}) as program:
            assert program.get("/api/v2/dags/one").status_code == 200
            assert program.get("/api/v2/dags/two").status_code == 403
            assert program.patch("/api/v2/dags/one", json={"is_paused": True}).json()["is_paused"] is True
            assert [one["dag_id"] for one in program.get("/api/v2/dags").json()["dags"]] == ["one"]
            assert program.get("/api/v2/connections").status_code == 403
        with Client(url) as one, Client(second) as other:
            answer = one.post("/auth/token", json={"username": "tess", "password": PASSWORD})
            bearer = {"authorization": f"Bearer {answer.json()['access_token']}"}
            assert other.get("/api/v2/dags/one", headers=bearer).status_code == 200
            with_password(site, "users", "set-password", "tess", password="another password")
            assert other.get("/api/v2/dags/one", headers=bearer).status_code == 401
        site.run("tokens", "delete", str(token["id"]))
        site.run("users", "delete", "tess", "--yes")
        assert site.json("tokens", "list") == []
    assert token["token"] not in site.story() + site.run("tokens", "list").stdout


def test_a_role_that_no_dag_names_is_accepted_with_a_warning(site):
    with site.up():
        site.wait_for_dag("one")
    said = site.run("users", "create", "ada", "--role", "vewer", "--no-password").stderr
    assert "The role 'vewer' gives no right so far: no DAG names it in its access_control. Did you mean viewer?" in said
    assert "Known roles: viewer, operator, admin, team." in said
    assert site.run("users", "set-role", "ada", "viewer", "team").stderr == ""
    assert "The roles 'a', 'b' give no right" in site.run("users", "set-role", "ada", "a", "b", "admin").stderr


def test_passwords_come_from_a_terminal_or_standard_input_only(site):
    site.run("db", "upgrade")
    assert "--password-stdin" in site.run("users", "create", "ada", "--role", "admin", code=1).stderr
    assert "No such option" in site.run("users", "create", "ada", "--role", "admin", "--password", "x", code=2).stderr
    site.run("users", "create", "ada", "--role", "admin", "--no-password")
    assert "already" in site.run("users", "create", "ada", "--role", "viewer", "--no-password", code=1).stderr
    assert "ada" in site.run("users", "set-role", "aad", "viewer", code=1).stderr
    assert site.run("users", "set-role", "ada", "viewer", "team").stdout == "User 'ada' has the roles viewer, team.\n"


@pytest.mark.parametrize("backend", ["sqlite"], scope="module")  # a PostgreSQL of the tests has its tables already
def test_web_without_a_database_says_where_it_looked(site):
    assert "Nothing is known here" in site.run("web", code=1).stderr


def test_a_certificate_makes_it_https_and_a_wrong_one_is_named_at_the_start(site):
    authority = Authority(site.root, "ours")
    certificate, key = authority.certify("127.0.0.1")
    site.env |= {"ASYNSCHED_WEB__TLS_CERTIFICATE": str(certificate), "ASYNSCHED_WEB__TLS_KEY": str(key)}
    with site.up():
        url, secret = link_of(site)
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(authority.file))
        with Client(url, verify=context) as browser:
            answer = browser.get("/login", params={"key": secret})
            assert answer.headers["set-cookie"].startswith("__Host-asynsched")
            assert "Secure" in answer.headers["set-cookie"]
            assert browser.get("/api/v2/version").status_code == 200
        at = urlsplit(url)
        before = ssl.get_server_certificate((at.hostname, at.port))
        key.write_text("no key")
        authority.certify("127.0.0.1")
        site.until(
            lambda: ssl.get_server_certificate((at.hostname, at.port)) != before, "the renewed certificate is shown"
        )
        assert ssl.get_server_certificate((at.hostname, at.port)) == certificate.read_text()
    key.write_text("no key")
    assert "web.tls_certificate" in site.run("up", str(site.dags), code=1).stderr


def test_a_log_for_programs_names_the_address_and_no_key(site):
    site.env["ASYNSCHED_LOG__FORMAT"] = "json"
    with site.up() as up:
        site.until(lambda: "web.listening" in up.log, "the address is logged")
        [told] = [json.loads(line) for line in up.log.splitlines() if "web.listening" in line]
        assert told["url"].startswith("http://127.0.0.1:")
        assert "key=" not in up.log
