"""Who may use the page and the REST APIs: hostile requests, sessions, tokens and rights."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import pytest_asyncio
from argon2 import PasswordHasher
from structlog.testing import capture_logs

from asynsched.client.operation import PREFIX
from asynsched.clock import VirtualClock
from asynsched.errors import AsynschedError
from asynsched.queries import users
from asynsched.queries.context import QueryContext
from asynsched.queries.paging import Page
from asynsched.queries.users import LONGEST_PASSWORD, SHORTEST_PASSWORD, TokenFilter, hash_password
from asynsched.settings import Settings, WebSettings, WorkersSettings
from asynsched.store.database import Database
from asynsched.store.engines.opening import open_database
from asynsched.store.schema import dag
from asynsched.web.access import Identity, Permission
from asynsched.web.airflow_api import AIRFLOW_API
from asynsched.web.app import make_guarded
from asynsched.web.own_api import OWN_API
from asynsched.web.pages import PAGE
from asynsched.web.pages.static import FOLDER, served_name
from asynsched.web.passwords import Passwords
from asynsched.web.sign_in import OF_ADDRESS, OF_NAME, own_path
from tests.support.stored import list_audit

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWN = "http://127.0.0.1:8080"
PASSWORDS = {name: f"{name}'s password" for name in ("vera", "otto", "anna", "tess")}
QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASHES = {name: QUICK.hash(password) for name, password in PASSWORDS.items()}
ROLES = {"vera": "viewer", "otto": "operator", "anna": "admin", "tess": "team"}
PAUSE = {"json": {"is_paused": True}}
BROWSER = {"sec-fetch-site": "same-origin"}
DAG, HIDDEN, PATCHED = "/api/v2/dags/open", "/api/v2/dags/closed", "/api/v2/dags/team_edits"


class Web:
    """An application, and browsers and programs that call it."""

    def __init__(
        self, database: Database, home: Path, web: WebSettings, workers: WorkersSettings | None = None
    ) -> None:
        self.clock = VirtualClock(NOW)
        settings = Settings(home=str(home), web=web, workers=workers or WorkersSettings())
        self.context = QueryContext(database, home, settings, self.clock)
        self.app = make_guarded(self.context, None, checks_host=True)

    @asynccontextmanager
    async def client(
        self, *, peer: str = "192.0.2.7", url: str = OWN, **headers: str
    ) -> AsyncIterator[httpx.AsyncClient]:
        """A client with cookies of its own."""
        transport = httpx.ASGITransport(self.app, client=(peer, 1234))
        async with httpx.AsyncClient(transport=transport, base_url=url, headers=headers) as client:
            yield client

    async def token(self, name: str, **options: Any) -> users.NewToken:
        row = await self.context.ask(users.store.get_user, name)
        options = {"scope": "administer", "dag_ids": None, "lasts": timedelta(days=1)} | options
        return await self.context.act(
            "test", users.create_token, name, "for a test", user_id=row.id, now=self.clock.now(), **options
        )

    async def link(self) -> str:
        await self.context.act(
            "test", users.create_link, secret := users.new_secret(), "owner@host", now=self.clock.now()
        )
        return f"/login?key={secret}"


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A database with four users and three DAGs, of which `tess` has rights to one."""
    postgres = request.param == "postgresql"
    url = request.getfixturevalue("postgres_url") if postgres else f"sqlite:///{tmp_path / 'asynsched.db'}"
    opened = await open_database(url, synchronous="normal")
    for name, role in ROLES.items():
        await opened.write(users.create_user, name, [role], password=HASHES[name], now=NOW)
    for dag_id, access_control in (
        ("open", None),
        ("closed", {"others": "operate"}),
        ("team_edits", {"team": "operate"}),
    ):
        values = {"dag_id": dag_id, "file_path": "f.py", "max_active_runs": 1, "updated_at": NOW}
        await opened.write(
            lambda conn, values: conn.execute(dag.insert(), values), {**values, "access_control": access_control}
        )
    yield opened
    await opened.close()


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Callable[..., Web]:
    """Make the application with settings of its own."""
    return lambda **settings: Web(database, tmp_path, WebSettings(**settings))


@pytest.fixture
def web(make) -> Web:
    return make()


async def sign_in(client: httpx.AsyncClient, name: str = "otto", **headers: str) -> httpx.Response:
    form = {"username": name, "password": PASSWORDS.get(name, "a wrong one"), "next": "/page"}
    return await client.post("/login", data=form, headers=BROWSER | headers)


class Hostile(NamedTuple):
    """A request that must be refused, from a browser in which an operator is signed in."""

    what: str
    status: int
    method: str = "PATCH"
    path: str = DAG
    headers: Mapping[str, str] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType(PAUSE)


HOSTILE = (
    Hostile("a name of the attacker's that points here", 421, headers={"host": "attacker.example:8080", **BROWSER}),
    Hostile("a name that only begins like ours", 421, headers={"host": "localhost.attacker.example", **BROWSER}),
    Hostile("a Host that is none", 421, headers={"host": "[::1", **BROWSER}),
    Hostile("another site's page", 403, headers={"sec-fetch-site": "cross-site"}),
    Hostile("another port of this host", 403, headers={"sec-fetch-site": "same-site"}),
    Hostile("another site's page in an old browser", 403, headers={"origin": "http://attacker.example"}),
    Hostile("another port's page in an old browser", 403, headers={"origin": "http://127.0.0.1:3000"}),
    Hostile("a page without an origin", 403, headers={"origin": "null"}),
    Hostile("another site's page with a password that the browser knows", 403,
            headers={"authorization": "Basic b3R0bzpvdHRv", "sec-fetch-site": "cross-site"}),
    Hostile("a cookie that comes from nowhere", 403),
    Hostile("a cross-site sign-out", 403, "POST", "/logout", {"sec-fetch-site": "cross-site"}, {}),
    Hostile("a cross-site sign-in", 403, "POST", "/login", {"origin": "http://attacker.example"}, {}),
    Hostile("a wrong token beside a good cookie", 401, headers={"authorization": "Bearer asynsched_0", **BROWSER}),
    Hostile("a session as a token", 401, headers={"authorization": "Bearer SESSION", **BROWSER}),
    Hostile("a password as Basic", 401, headers={"authorization": "Basic b3R0bzpvdHRv", **BROWSER}),
    Hostile("a user's name without a trusted proxy", 403, headers={"x-forwarded-user": "anna"}),
    Hostile("a body of five megabytes", 413, headers=BROWSER, options={"content": b" " * 5 * 1024**2}),
    Hostile("a form of a megabyte", 413, "POST", "/login", BROWSER, {"content": b"a" * 1024**2}),
    Hostile("a form of many fields", 422, "POST", "/login", BROWSER, {"content": "a=1&" * 21}),
    Hostile("JSON that is nested deeply", 422, headers=BROWSER, options={"content": b"[" * 200_000}),
    Hostile("a path out of the files", 404, "GET", "/static/../../../etc/passwd", {}, {}),
    Hostile("an encoded path out of the files", 404, "GET", "/static/%2e%2e/%2e%2e/app.py", {}, {}),
    Hostile("another method", 405, "DELETE", "/login", BROWSER, {}),
    Hostile("an index of thousands of digits", 404, "GET", f"{DAG}/dagRuns/r/taskInstances/t/{5000 * '1'}", {}, {}),
    Hostile("a name of a megabyte", 413, "POST", "/auth/token", BROWSER,
            {"json": {"username": 1_000_000 * "a", "password": "p"}}),
    Hostile("a thousand tags", 400, "GET", "/api/v2/dags", {}, {"params": [("tags", str(n)) for n in range(1001)]}),
)  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: one.what)
async def test_a_hostile_request_is_refused(web, hostile):
    async with web.client() as client:
        assert (await sign_in(client)).status_code == 303
        [session] = client.cookies.values()
        headers = {name: value.replace("SESSION", session) for name, value in hostile.headers.items()}
        answer = await client.request(hostile.method, hostile.path, headers=headers, **hostile.options)
        assert answer.status_code == hostile.status, answer.text
        assert hostile.status != 413 or " bytes at most." in answer.text
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert (await client.get(DAG)).json()["is_paused"] is False
        good = await client.patch(DAG, headers=BROWSER, **PAUSE)
        assert (good.status_code, good.json()["is_paused"]) == (200, True)


async def test_the_names_at_which_workers_reach_the_schedulers_are_its_own(database, tmp_path):
    web = Web(database, tmp_path, WebSettings(), WorkersSettings(addresses=("http://scheduler:8080",)))
    for host, status in (("scheduler", 200), ("another", 421)):
        async with web.client(url=f"http://{host}:8080") as client:
            assert (await client.get("/login")).status_code == status


async def test_a_browser_keeps_its_session_where_no_script_reads_it(make):
    web = make(base_url="https://dags.example/scheduler", trusted_proxies=("192.0.2.0/24",))
    async with web.client(url="https://dags.example") as client:
        answer = await client.post(
            "/scheduler/login", data={"username": "otto", "password": PASSWORDS["otto"]}, headers=BROWSER
        )
        cookie = answer.headers["set-cookie"]
        assert answer.headers["location"] == "/scheduler/"
        assert all(part in cookie for part in ("HttpOnly", "SameSite=lax", "Secure", "Path=/scheduler"))
        # The proxy may strip the prefix, or leave it.
        for path in (f"/scheduler{DAG}", DAG):
            assert (await client.get(path, headers={"cookie": cookie.partition(";")[0]})).status_code == 200
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
    async with make(base_url="https://dags.example").client(url="https://dags.example") as client:
        assert (await sign_in(client)).headers["set-cookie"].startswith("__Host-asynsched=")


async def test_a_sign_in_begins_a_new_session_and_ends_that_of_the_browser(web):
    async with web.client() as attacker, web.client() as victim:
        await sign_in(attacker, "vera")
        [(name, planted)] = attacker.cookies.items()
        victim.cookies.set(name, planted, domain="127.0.0.1")
        answer = await sign_in(victim)
        assert planted not in answer.headers["set-cookie"]
        assert (await attacker.get(DAG)).status_code == 401


@pytest.mark.parametrize("path", ["/login", "/auth/token"])
@pytest.mark.parametrize("change", ["set_password", "disable_user", "delete_user"])
async def test_a_password_that_is_changed_while_it_is_verified_gives_nothing(web, monkeypatch, change, path):
    verify = Passwords.are_right
    given = {"password": hash_password("another long secret")} if change == "set_password" else {}
    found = []

    async def verify_slowly(*args):
        found.append(await verify(*args))
        await web.context.act("anna", getattr(users, change), "otto", **given)
        return found[-1]

    monkeypatch.setattr(Passwords, "are_right", verify_slowly)
    fields = {"username": "otto", "password": PASSWORDS["otto"]}
    body = {"data": fields} if path == "/login" else {"json": fields}
    async with web.client() as client:
        answer = await client.post(path, headers=BROWSER, **body)
    assert (answer.status_code, found) == (401, [True])
    assert await web.context.ask(users.list_sessions, TokenFilter(now=web.clock.now())) == Page(())
    assert await web.context.ask(users.list_tokens, TokenFilter(now=web.clock.now())) == Page(())


async def test_what_ends_a_session_ends_it_at_once(web):
    act = web.context.act

    async def end_it() -> None:
        wanted = TokenFilter(now=web.clock.now(), owner="otto")
        [session] = (await web.context.ask(users.list_sessions, wanted)).items
        await act("anna", users.end_session, session.id)

    ends = {
        "signing out": lambda client: client.post("/logout", headers=BROWSER),
        "an administrator": lambda _: end_it(),
        "another password": lambda _: act("anna", users.set_password, "otto", password=HASHES["otto"]),
    }
    for what, end in ends.items():
        async with web.client() as client:
            await sign_in(client)
            assert (await client.get(DAG)).status_code == 200
            await end(client)
            assert (await client.get(DAG)).status_code == 401, what
    async with web.client() as client:
        await sign_in(client)
        web.clock.leap(timedelta(hours=168).total_seconds())
        assert (await client.get(DAG)).status_code == 401, "its time"
        await sign_in(client)
        await act("anna", users.delete_user, "otto")
        assert (await client.get(DAG)).status_code == 401, "the user's deletion"
    assert await web.context.ask(users.list_sessions, TokenFilter(now=web.clock.now())) == Page(())


@pytest.mark.parametrize("token", [
    ("expired", {"lasts": timedelta(minutes=1)}, 401),
    ("ended", {}, 401),
    ("of a deleted user", {}, 401),
    ("for viewing", {"scope": "view"}, 403),
    ("for another DAG", {"dag_ids": ["closed"]}, 403),
    ("of a demoted user", {}, 403),
    ("for this DAG", {"scope": "operate", "dag_ids": ["open"]}, 200),
    ("for everything", {}, 200),
], ids=lambda one: one[0])  # fmt: skip
async def test_a_token_allows_what_it_is_for(web, token):
    what, options, status = token
    made = await web.token("otto", **options)
    if what == "expired":
        web.clock.leap(60)
    elif what == "ended":
        await web.context.act("otto", users.delete_token, made.info.id, "otto")
    elif what == "of a deleted user":
        await web.context.act("anna", users.delete_user, "otto")
    elif what == "of a demoted user":
        await web.context.act("anna", users.set_roles, "otto", ["viewer"])
    async with web.client(authorization=f"Bearer {made.secret}") as client:
        assert (await client.patch(DAG, **PAUSE)).status_code == status


async def test_a_token_ends_only_for_its_owner(web):
    made = await web.token("otto")
    with pytest.raises(LookupError):
        await web.context.act("vera", users.delete_token, made.info.id, "vera")
    left = await web.context.ask(users.list_tokens, TokenFilter(now=web.clock.now(), owner="otto"))
    assert [one.id for one in left.items] == [made.info.id]


@pytest.mark.parametrize("name", ROLES)
async def test_a_role_allows_what_it_says_on_each_dag(web, name):
    expected = {
        "vera": {"open": (200, 403), "closed": (200, 403), "team_edits": (200, 403)},
        "otto": {"open": (200, 200), "closed": (200, 200), "team_edits": (200, 200)},
        "anna": {"open": (200, 200), "closed": (200, 200), "team_edits": (200, 200)},
        "tess": {"open": (403, 403), "closed": (403, 403), "team_edits": (200, 200)},
    }
    async with web.client(authorization=f"Bearer {(await web.token(name)).secret}") as client:
        for dag_id, statuses in expected[name].items():
            path = f"/api/v2/dags/{dag_id}"
            assert ((await client.get(path)).status_code, (await client.patch(path, **PAUSE)).status_code) == statuses


async def test_a_dag_gives_a_viewer_more_rights_to_itself_alone(web):
    await web.context.act("anna", users.set_roles, "vera", ["viewer", "team"])
    async with web.client(authorization=f"Bearer {(await web.token('vera')).secret}") as client:
        assert (await client.patch(PATCHED, **PAUSE)).status_code == 200
        assert (await client.patch(DAG, **PAUSE)).status_code == 403
        assert (await client.get(DAG)).status_code == 200


APIS = {"/api/v2": AIRFLOW_API, PREFIX: OWN_API, "": PAGE}
OPEN = {"/api/v2/monitor/health", "/api/v2/version", "/static/{name}"}
"""What everybody may read: for probes, for clients that look for a version, and the files of the sign-in page."""


def _filled(path: str) -> str:
    """Return a path with a DAG and other names in it."""
    file = served_name(FOLDER / "page.css")
    return re.sub(r"{\w+(:\w+)?}", "1", path.replace("{dag_id}", "open").replace("static/{name}", f"static/{file}"))


@pytest.mark.parametrize("prefix", APIS)
async def test_nothing_is_open_without_a_sign_in_nor_a_dag_without_a_right_to_it(web, prefix):
    endpoints = [(one.method, prefix + one.path, one.permission) for one in APIS[prefix].endpoints]
    async with web.client() as nobody, web.client(authorization=f"Bearer {(await web.token('tess')).secret}") as tess:
        statuses = {
            (method, path): (await nobody.request(method, _filled(path))).status_code for method, path, _ in endpoints
        }
        assert {path for (_, path), status in statuses.items() if status != 401} == OPEN & {
            path for _, path in statuses
        }
        foreign = {
            (method, path): (await tess.request(method, _filled(path))).status_code
            for method, path, permission in endpoints
            if "{dag_id}" in path or permission > Permission.VIEW
        }
        assert {one for one, status in foreign.items() if status != 403} == set()


async def test_guesses_of_a_password_are_limited_by_address_and_by_name(web):
    right = {"username": "otto", "password": PASSWORDS["otto"]}
    most_of_address, within = OF_ADDRESS
    async with web.client(peer="192.0.2.66") as client:
        for _ in range(most_of_address):
            answer = await client.post("/auth/token", json=right | {"password": "guessed"})
            assert answer.status_code == 401
        answer = await client.post("/auth/token", json=right)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, str(round(within.total_seconds())))
        assert (await sign_in(client)).status_code == 429
        async with web.client() as elsewhere:
            assert (await elsewhere.post("/auth/token", json=right)).status_code == 201
        web.clock.leap(within.total_seconds() + 1)
        assert (await client.post("/auth/token", json=right)).status_code == 201
    for number in range(OF_NAME[0]):
        async with web.client(peer=f"198.51.100.{number}") as client:
            assert (await client.post("/auth/token", json=right | {"password": "guessed"})).status_code == 401
    async with web.client(peer="198.51.100.200") as client:
        assert (await client.post("/auth/token", json=right)).status_code == 429
    wrong = {"username": "vera", "password": "guessed"}
    for number in range(most_of_address + 1):
        async with web.client(peer=f"2001:db8::{number}:1") as client:
            answer = await client.post("/auth/token", json=wrong)
    assert answer.status_code == 429, "an IPv6 client takes any address of its network"


async def test_the_form_keeps_the_name_after_a_wrong_password(web):
    async with web.client() as client:
        refused = await sign_in(client, '"><script>')
        assert (refused.status_code, 'value="&#34;&gt;&lt;script&gt;"' in refused.text) == (401, True)
        assert "a wrong one" not in refused.text


async def test_the_secret_of_a_new_token_is_shown_once_and_no_reload_makes_another(web):
    async with web.client() as client:
        await sign_in(client)
        made = await client.post("/tokens", data={"label": "report", "scope": "view", "days": "3"}, headers=BROWSER)
        assert (made.status_code, made.headers["location"]) == (303, "/tokens")
        for flag in ("HttpOnly", "SameSite=strict", "Path=/;"):
            assert flag in made.headers["set-cookie"]
        [secret] = re.findall(r'id="secret"[^>]*>(asynsched_\w+)<', (await client.get("/tokens")).text)
        again = (await client.get("/tokens")).text
        assert (secret in again, again.count('<td class="strong">report</td>')) == (False, 1)
        async with web.client() as program:
            answer = await program.get(DAG, headers={"authorization": f"Bearer {secret}"})
            assert answer.status_code == 200


async def test_an_unknown_name_is_refused_like_a_wrong_password(web):
    async with web.client() as client:
        answers = [
            await client.post("/auth/token", json={"username": name, "password": "a wrong one"})
            for name in ("otto", "nobody", "no\x00body", "x" * 5000)
        ]
        assert {(answer.status_code, answer.text) for answer in answers} == {
            (401, '{"detail":"The name or the password is wrong."}')
        }


async def test_a_failed_sign_in_is_logged_with_name_and_address_alone(web):
    link = await web.link()
    async with web.client() as owner:
        await owner.get(link)
    async with web.client() as client:
        with capture_logs() as logs:
            for name in ("otto", "nobody", "x" * 5000):
                await client.post("/auth/token", json={"username": name, "password": "a wrong one"})
            await sign_in(client, "otta")
            await client.get(link)
    of_password = {"event": "web.sign_in_failed", "log_level": "warning", "address": "192.0.2.7"}
    assert logs == [
        *(of_password | {"user": name} for name in ("otto", "nobody", "x" * 100, "otta")),
        of_password | {"by": "link"},
    ]


async def test_airflows_clients_get_a_token_for_a_name_and_a_password(web):
    async with web.client() as client:
        for path in ("/auth/token", "/auth/token/cli"):
            answer = await client.post(path, json={"username": "otto", "password": PASSWORDS["otto"]})
            assert (answer.status_code, list(answer.json())) == (201, ["access_token"])
            bearer = {"authorization": f"Bearer {answer.json()['access_token']}"}
            assert (await client.get(DAG, headers=bearer)).status_code == 200
        assert (await client.get("/auth/token")).status_code == 401
        await sign_in(client, "vera")
        own = await client.get("/auth/token")
        bearer = {"authorization": f"Bearer {own.json()['access_token']}"}
    async with web.client() as program:
        assert (await program.patch(DAG, headers=bearer, **PAUSE)).status_code == 403
        web.clock.leap(timedelta(days=1).total_seconds())
        assert (await program.get(DAG, headers=bearer)).status_code == 401


async def test_a_link_signs_in_once_and_only_within_a_day(web):
    link = await web.link()
    async with web.client() as first, web.client() as second:
        answer = await first.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert (await first.patch(DAG, headers=BROWSER, **PAUSE)).status_code == 200
        again = await second.get(link)
        assert (again.status_code, "asynsched users link" in again.text) == (401, True)
        assert (await second.get(DAG)).status_code == 401
        old = await web.link()
        web.clock.leap(timedelta(days=1).total_seconds())
        assert (await second.get(old)).status_code == 401


@pytest.mark.parametrize(("path", "kept"), [
    ("/dags/a?tab=runs", "/dags/a?tab=runs"), ("", ""), ("https://attacker.example/", ""), ("//attacker.example", ""),
    ("/\\attacker.example", ""), ("/\t/attacker.example", ""), ("javascript:alert(1)", ""), ("dags", ""),
    ("/ok\r\nset-cookie: a=b", ""), ("//[", ""),
])  # fmt: skip
async def test_a_sign_in_leads_only_to_pages_of_its_own(web, path, kept):
    assert own_path(path, "") == kept
    async with web.client() as client:
        form = {"username": "otto", "password": PASSWORDS["otto"], "next": path}
        assert (await client.post("/login", data=form, headers=BROWSER)).headers["location"] == (kept or "/")


async def test_a_browser_without_a_session_is_led_to_the_form(web):
    async with web.client(accept="text/html") as client:
        answer = await client.get(f"{DAG}?a=b")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={DAG}%3Fa%3Db")
        came = {**BROWSER, "referer": f"{client.base_url}/dags?q=re"}
        answer = await client.post("/dags/open/pause", data={"paused": "yes"}, headers=came)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/dags%3Fq%3Dre")
        form = await client.get("/login", params={"next": '/"><script>alert(1)</script>'})
        assert "<script>" not in form.text
        assert (await client.post(DAG)).status_code in (403, 405)
        assert (await client.get("/static/none.css")).status_code == 404


async def test_a_proxy_is_believed_only_if_it_is_trusted_and_names_one_user(make):
    web = make(trusted_proxies=("10.0.0.0/8",), user_header="X-Forwarded-User", default_role="viewer")
    named = {"x-forwarded-user": "otto"}
    async with web.client(peer="10.1.2.3") as proxy, web.client(peer="192.0.2.7") as other:
        assert (await proxy.patch(DAG, headers=named | BROWSER, **PAUSE)).status_code == 200
        assert (await proxy.patch(DAG, headers=named, **PAUSE)).status_code == 403, "no proof that it is our page"
        assert (await proxy.get(DAG, headers={"x-forwarded-user": "unknown"})).status_code == 200
        assert (await proxy.patch(DAG, headers={"x-forwarded-user": "unknown"} | BROWSER, **PAUSE)).status_code == 403
        assert (await proxy.get(DAG, headers=[*named.items(), ("x-forwarded-user", "anna")])).status_code == 401
        assert (await other.get(DAG, headers=named)).status_code == 401
        page = await proxy.get("/preferences", headers=[(b"x-forwarded-user", "Åsa".encode())])
        assert "Åsa" in page.text
        # A client behind the proxy cannot name another one: the proxy's header counts, and not the address it gives.
        assert (await other.get(DAG, headers=named | {"x-forwarded-for": "10.1.2.3"})).status_code == 401
    async with make(trusted_proxies=("10.0.0.0/8",), user_header="X-Forwarded-User").client(peer="10.1.2.3") as strict:
        assert (await strict.get(DAG, headers={"x-forwarded-user": "unknown"})).status_code == 401


async def test_every_action_is_in_the_audit_with_its_user_and_no_secret(web):
    async with web.client() as client:
        await sign_in(client)
        await client.patch(DAG, headers=BROWSER, **PAUSE)
        await client.get("/auth/token")
        await client.post("/logout", headers=BROWSER)
    made = await web.token("otto")
    rows = await web.context.ask(list_audit)
    assert [(row.action, row.actor) for row in reversed(rows)] == [
        ("user.sign_in", "otto"), ("dag.pause", "otto"), ("token.create", "otto"), ("user.sign_out", "otto"),
        ("token.create", "test"),
    ]  # fmt: skip
    written = msgspec.json.encode([row.detail for row in rows]).decode() + repr(made)
    assert made.secret not in written
    assert "password" not in written


async def test_a_token_that_a_token_makes_allows_no_more_and_ends_with_it(web):
    tokens = f"{PREFIX}/tokens"
    weak = await web.token("otto", scope="view", dag_ids=["open"], lasts=timedelta(hours=1))
    strong = await web.token("otto", scope="operate")
    of_anna = await web.token("anna")
    async with web.client(authorization=f"Bearer {weak.secret}") as program, web.client() as browser:
        for wanted in ({"scope": "operate"}, {"dag_ids": ["open", "closed"]}, {"dag_ids": ["closed"]}):
            assert (await program.post(tokens, json=wanted)).status_code == 400, wanted
        made = (await program.post(tokens, json={"days": 30})).json()
        assert (made["info"]["dag_ids"], made["info"]["scope"]) == (["open"], "view")
        assert made["info"]["expires_at"] == "2026-01-01T01:00:00Z"
        async with web.client(authorization=f"Bearer {made['secret']}") as other:
            assert [(await other.get(path)).status_code for path in (DAG, HIDDEN)] == [200, 403]
            assert (await other.get("/auth/token")).status_code == 401, "it would never end"
        assert (await program.delete(f"{tokens}/{strong.info.id}")).status_code == 400
        assert (await program.delete(f"{tokens}/{of_anna.info.id}")).status_code == 404
        assert (await program.delete(f"{tokens}/{made['info']['id']}")).status_code == 204
        await sign_in(browser)
        assert (await browser.post(tokens, json={"scope": "administer"}, headers=BROWSER)).status_code == 400
        assert (await browser.post(tokens, json={"scope": "operate"}, headers=BROWSER)).status_code == 201
        assert len((await browser.get(tokens)).json()["items"]) == 3
        assert (await browser.delete(f"{tokens}/{strong.info.id}", headers=BROWSER)).status_code == 204


async def test_who_is_disabled_has_no_session_no_token_and_gets_none(web):
    token = await web.token("vera")
    async with web.client() as browser, web.client(authorization=f"Bearer {token.secret}") as program:
        await sign_in(browser, "vera")
        await web.context.act("anna", users.disable_user, "vera")
        assert [(await client.get(DAG)).status_code for client in (browser, program)] == [401, 401]
        assert (await sign_in(browser, "vera")).status_code == 401
        assert (await browser.get(DAG)).status_code == 401
        await web.context.act("anna", users.set_roles, "vera", ["viewer"])
        await sign_in(browser, "vera")
        assert [(await client.get(DAG)).status_code for client in (browser, program)] == [200, 401]


def test_a_token_never_allows_more_than_its_user_may():
    viewer = Identity("vera", Permission.VIEW, {"mine": Permission.OPERATE}, Permission.VIEW)
    assert viewer.dag_ids is None
    assert viewer.may(Permission.OPERATE, "mine")
    limited = viewer.limited(Permission.ADMINISTER, ["mine", "other"])
    assert limited.dag_ids == {"mine", "other"}
    assert limited.may(Permission.OPERATE, "mine")
    assert not limited.may(Permission.OPERATE, "other")
    assert not limited.may(Permission.VIEW, "third")
    assert not Identity("anna", Permission.ADMINISTER).limited(Permission.ADMINISTER, ["mine"]).may(Permission.OPERATE)
    assert not viewer.limited(Permission.VIEW, None).may(Permission.OPERATE, "mine")


async def test_a_password_is_kept_as_a_slow_hash_of_its_own():
    password = "correct horse"
    first, second = hash_password(password), hash_password(password)
    assert first.startswith("$argon2id$")
    assert first != second
    passwords = Passwords()
    assert await passwords.are_right(password, first)
    assert not await passwords.are_right(f"{password}!", first)
    assert not await passwords.are_right(password, "no hash")
    for wrong in ("x" * (SHORTEST_PASSWORD - 1), "x" * (LONGEST_PASSWORD + 1)):
        with pytest.raises(AsynschedError, match="A password has"):
            hash_password(wrong)
