"""Which values are secrets, and how a task's own process hides them."""

import pytest

from asynsched.authoring import masking
from asynsched.authoring.masking import mask_secret, redact
from asynsched.authoring.supervisor import SupervisorError, ask, set_supervisor


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
