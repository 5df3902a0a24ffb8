"""What a client of another process says of an application that it cannot use."""

from typing import get_args

import httpx
import pytest

from asynsched.client import client  # noqa: F401 - it makes the operations
from asynsched.client.client import RunStateName, RunTypeName, TaskStateName
from asynsched.client.operation import OPERATIONS
from asynsched.client.remote import Remote, RemoteError
from asynsched.states import DagRunState, DagRunType, TaskInstanceState


def asked(answer, *, url="http://bob:hunter22@far.example", operation="list_dags"):
    """Return the error of a question to an application that gives this answer."""

    async def ask():
        remote = Remote(url, "token", httpx.MockTransport(answer))
        with pytest.raises(RemoteError) as raised:
            await remote.ask(OPERATIONS[operation], {})
        await remote.close()
        return str(raised.value)

    return ask()


def lost(request):
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lost, "cannot be reached: refused"),
        (lambda _: httpx.Response(502, json={"detail": ["a", "b"]}), "a; b"),
        (lambda _: httpx.Response(502, json={"detail": {"code": 1}}), "{'code': 1}"),
        (lambda _: httpx.Response(502, json={"detail": None}), "None"),
        (lambda _: httpx.Response(502, text="<h1>Bad Gateway</h1>"), "<h1>Bad Gateway</h1>"),
        (lambda _: httpx.Response(308, headers={"Location": "https://far.example/"}), "it redirects to https://far"),
        (lambda _: httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=b"no"), "cannot be reached: "),
    ],
)
async def test_any_answer_of_a_proxy_is_told_without_the_password_of_the_address(answer, said):
    told = await asked(answer)
    assert said in told
    assert told.startswith("http://far.example")


@pytest.mark.parametrize("token", ["secret\n", "sec ret", "s\u00e9cret"])
def test_a_token_that_none_can_be_is_refused_without_showing_it(token):
    with pytest.raises(ValueError, match="token: it has a blank, a line feed") as refused:
        Remote("http://far.example", token)
    assert token.strip() not in str(refused.value)


@pytest.mark.parametrize(
    ("names", "kind"), [(RunStateName, DagRunState), (TaskStateName, TaskInstanceState), (RunTypeName, DagRunType)]
)
def test_type_checkers_take_the_name_of_each_state_and_type(names, kind):
    assert set(get_args(names)) == set(kind)
