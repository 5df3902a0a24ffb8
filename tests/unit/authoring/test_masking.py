"""Which values are secrets, and how a task's own process hides them."""

import json

import pytest

from asynsched.authoring import masking
from asynsched.authoring.masking import mask_secret, redact, secrets_in_answer, shortened
from asynsched.authoring.running.rendered_fields import MOST_CHARACTERS, fields_as_json
from asynsched.authoring.running.templating import Templater
from asynsched.authoring.running.tracebacks import LONGEST_LINE, one_line
from asynsched.authoring.supervisor import SupervisorError, ask, set_supervisor
from asynsched.protocol.secrets import Secrets
from sandbox.supervision.tries import masked_fields


class Scheduler:
    """Notes requests, and answers those for connections."""

    def __init__(self):
        self.asked = []

    def request(self, operation, **arguments):
        self.asked.append((operation, arguments))
        if operation == "mask_secret" and "refused" in arguments["secrets"]:
            raise SupervisorError("no")
        return {"password": "open sesame", "extra": '{"api_key": "abcdef", "host": "public"}'}


@pytest.fixture(autouse=True)
def scheduler(monkeypatch):
    monkeypatch.setattr(masking, "_known", set())
    scheduler = Scheduler()
    set_supervisor(scheduler)
    yield scheduler
    set_supervisor(None)


def test_secrets_go_to_the_keeper_once_and_only_if_their_names_are_secret(scheduler, caplog):
    mask_secret({"password": "correct horse", "user": "battery staple", "token": ["first one", "short"[:4]]})
    mask_secret("correct horse")
    mask_secret("airflow")
    mask_secret("harmless", name="host")
    assert scheduler.asked == [("mask_secret", {"secrets": ["correct horse", "first one"]})]
    mask_secret("refused")
    assert redact("refused, harmless") == "***, harmless"
    assert caplog.messages == ["The log of this task may show a secret: no"]


def test_while_a_file_is_parsed_secrets_are_known_to_this_process_only():
    set_supervisor(None)
    mask_secret("correct horse")
    assert redact(["a correct horse", 1]) == ["a ***", 1]


def test_answers_to_questions_for_connections_are_secrets():
    ask("connection_get", conn_id="mine")
    assert redact("open sesame abcdef public") == "*** *** public"


def test_fields_with_the_names_of_secrets_are_hidden_at_all_levels():
    value = {"user": "me", "conn": {"Password": "x", "api_key": {"a": ["b", 1]}, "empty_token": ""}, "n": 1}
    assert redact(value) == {
        "user": "me", "conn": {"Password": "***", "api_key": {"a": ["***", 1]}, "empty_token": ""}, "n": 1
    }  # fmt: skip
    assert redact("text", name="secret", replacement="hidden") == "hidden"
    assert redact(("a", {"b"})) == ("a", {"b"})


@pytest.mark.parametrize("depth", [900, 5_000], ids=["too deep to search", "too deep for the decoder"])
@pytest.mark.parametrize("close", ["", "]"])
def test_a_value_that_is_nested_too_deeply_is_searched_without_an_error(depth, close):
    nested = "[" * depth + '{"token": "swordfish"}' + close * depth
    found = set(secrets_in_answer("variable_get", {"key": "tables"}, nested))
    assert found <= {nested, "swordfish"}
    fields = {"password": "open sesame", "extra": nested}
    assert "open sesame" in set(secrets_in_answer("connection_get", {"conn_id": "mine"}, fields))


def test_a_secret_is_masked_before_a_text_is_cut():
    mask_secret("correct horse")
    before = "x" * (LONGEST_LINE - len("ValueError: correct"))
    assert "correct" not in one_line(ValueError(f"{before}correct horse battery staple"))
    assert "horse" not in shortened("a correct horse staple", len("horse staple"), keeps_end=True)
    assert shortened("a correct horse", 5) == "a ***"
    assert shortened("a correct horse", 100) == "a correct horse"


def test_the_keeper_masks_what_a_cut_has_left_of_a_secret_that_only_it_knows():
    class Task(Templater):
        template_fields = ("command", "listed")

    task, secrets = Task(), Secrets()
    task.command = "é" * (MOST_CHARACTERS - 7) + "correct horse"
    task.listed = ["x" * (MOST_CHARACTERS - len('["correct')) + "correct horse"]
    secrets.learn("connection_get", {}, {"password": "correct horse"})
    shown = masked_fields(fields_as_json(task), secrets)
    assert "corr" not in shown
    assert json.loads(shown)["command"] == "é" * (MOST_CHARACTERS - 7) + "***…"


def test_rendered_fields_are_json_within_limits_and_without_secrets():
    mask_secret("correct horse")
    fields = {
        "command": "login --with 'correct horse'", "env": {"api_key": "abc", "n": 1}, "script": "x" * 10_000,
        "others": [b"bytes", 1.5, float("nan"), None, "\ud800\0", {("a", 1): {2}}], "secret": ["abc"],
        **{f"filler_{number}": "y" * 4000 for number in range(20)},
    }  # fmt: skip

    class Task(Templater):
        template_fields = tuple(fields)

    task = Task()
    task.__dict__.update(fields)
    text = fields_as_json(task)
    found = json.loads(text)
    assert len(text) < 70_000
    assert found["command"] == "login --with '***'"
    assert (found["env"], found["secret"]) == ({"api_key": "***", "n": 1}, ["***"])
    assert found["script"] == "x" * 4096 + "…"
    assert found["others"] == ["b'bytes'", 1.5, "nan", None, "?�", {"('a', 1)": [2]}]
    assert "filler_0" in found
    assert "filler_19" not in found
