"""The secrets among a try's answers, and their masks in its log."""

import json
import os
import re
from functools import partial
from urllib.parse import quote, quote_plus

import pytest

from asynsched.authoring.masking import CUT
from asynsched.protocol.secrets import MAX_SECRETS, Secrets
from sandbox.supervision.task_log import TaskLog, environment_secrets
from sandbox.supervision.tries import masked_fields

STAMP = re.compile(r"^\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\] ", re.MULTILINE)
LENGTH_OF_STAMP = len("[2024-05-01T12:30:00.000Z] ")


@pytest.mark.parametrize(
    ("operation", "arguments", "value", "hidden", "shown"),
    [
        ("variable_get", {"key": "db_password"}, "swordfish", "swordfish", ""),
        ("variable_get", {"key": "API_KEY"}, "swordfish", "swordfish", ""),
        ("variable_get", {"key": "colour"}, "vermilion", "", "vermilion"),
        ("variable_get", {"key": "my_secret"}, "shrt", "", "shrt"),
        ("variable_get", {"key": "conf"}, '{"token": "swordfish", "host": "example"}', "swordfish", "example"),
        ("variable_get", {"key": "secret"}, '{"a": ["swordfish"]}', "swordfish", ""),
        ("variable_get", {"key": "private_key"}, "-----BEGIN\nabcdefgh\n", "abcdefgh", ""),
        ("connection_get", {"conn_id": "c"}, {"password": "pass word/1", "login": "scott"}, "pass%20word%2F1", "scott"),
        ("connection_get", {"conn_id": "c"}, {"extra": '{"api_key": "swordfish"}'}, "swordfish", ""),
        ("xcom_pull", {"key": "password"}, "swordfish", "", "swordfish"),
        ("trigger_work", {}, {"start": [{"kwargs": {"password": "swordfish", "path": "/tmp"}}]}, "swordfish", "/tmp"),
    ],
)
def test_secrets_are_known_by_the_names_that_airflow_masks(operation, arguments, value, hidden, shown):
    secrets = Secrets()
    secrets.learn(operation, arguments, value)
    masked = secrets.mask(f"<{hidden}> <{shown}>".encode()).decode()
    assert masked == f"<{'***' if hidden else ''}> <{shown}>"


@pytest.mark.parametrize(
    "spell",
    [
        str, repr, json.dumps, lambda text: json.dumps([text], ensure_ascii=False), quote, quote_plus,
        partial(quote, safe=""),
    ],
)  # fmt: skip
def test_a_secret_is_masked_however_a_program_spells_it(spell):
    secret = "ab\\cd\"ef'gh é/%"
    secrets = Secrets()
    secrets.learn("connection_get", {}, {"password": secret})
    masked = secrets.mask(f"<{spell(secret)}>".encode()).decode()
    assert "***" in masked
    assert "cd" not in masked


@pytest.mark.parametrize(
    ("fields", "masked"),
    [
        ({"a": "x 123456", "b": 7}, '{"a": "x ***", "b": 7}'),
        ({"a": 123456}, None),
        ({"a": "\nabcde"}, None),
    ],
)
def test_rendered_fields_stay_json_or_are_not_kept(fields, masked):
    secrets = Secrets()
    secrets.learn_told({"secrets": ["123456", "nabcde"]})
    assert masked_fields(json.dumps(fields), secrets) == masked


def test_a_task_may_name_secrets_up_to_a_limit():
    secrets = Secrets()
    assert secrets.learn_told({"secrets": ["correct horse", 7]}) == ""
    assert secrets.learn_told({"secrets": 7}) == ""
    objection = secrets.learn_told({"secrets": [f"secret {number}" for number in range(MAX_SECRETS)]})
    assert "a task may have at most about" in objection
    assert secrets.mask(b"correct horse, secret 7") == b"***, secret 7"


def test_secrets_are_found_at_any_depth():
    nested = "correct horse"
    for _ in range(5_000):
        nested = [{"a": nested}]
    secrets = Secrets()
    assert secrets.learn_told({"secrets": nested}) == ""
    assert secrets.mask(b"correct horse") == b"***"


def test_what_a_trigger_host_says_of_a_trigger_that_failed_is_masked():
    secrets = Secrets()
    secrets.learn_fields({"auth": {"token": "swordfish"}, "name": "vermilion"})
    outcome = {
        "id": "t",
        "kind": "error",
        "detail": "no swordfish",
        "traceback": ["vermilion", "swordfish"],
        "payload": 7,
    }
    assert secrets.mask_outcomes({"outcomes": [outcome, "odd"]}) == {
        "outcomes": [outcome | {"detail": "no ***", "traceback": ["vermilion", "***"]}, "odd"]
    }
    assert secrets.mask_outcomes({"outcomes": 7}) == {"outcomes": 7}
    nested: list[object] = []
    for _ in range(5_000):
        nested = [nested]
    assert secrets.mask_outcomes({"outcomes": [{"detail": nested}]}) == {"outcomes": [{"detail": []}]}
    cut = secrets.mask_outcomes({"outcomes": [{"detail": "no sword…", "traceback": ["…fish", "end"]}]})
    assert cut == {"outcomes": [{"detail": "no ***…", "traceback": ["…***", "end"]}]}


def test_a_secret_that_is_part_of_another_leaves_no_rest_of_it():
    secrets = Secrets()
    secrets.learn("variable_get", {"key": "token_a"}, "swordfish")
    secrets.learn("variable_get", {"key": "token_b"}, "swordfish-and-more")
    assert secrets.mask(b"swordfish-and-more, swordfish").decode() == "***, ***"


@pytest.mark.parametrize("size", [1, 3, 50_000])
def test_a_secret_in_pieces_is_masked_in_the_log(tmp_path, size):
    secrets = Secrets()
    secrets.learn("variable_get", {"key": "token"}, "swordfish")
    log = TaskLog(tmp_path / "a" / "b.log", 10**6, secrets)
    text = b"before swordfish " * 6_000 + b"\nand swordfish"
    for start in range(0, len(text), size):
        log.write(text[start : start + size])
    log.close()
    written = STAMP.sub("", (tmp_path / "a" / "b.log").read_text())
    assert "swordfish" not in written
    assert written == text.decode().replace("swordfish", "***")


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_secret_that_the_keepers_own_line_interrupts_is_masked(tmp_path, at):
    secrets = Secrets()
    secrets.learn("variable_get", {"key": "token"}, "swordfish")
    log = TaskLog(tmp_path / "x.log", 10**6, secrets)
    log.write(f"it is {'swordfish'[:at]}".encode())
    log.say("WARNING", "Ending the task")
    log.write(f"{'swordfish'[at:]}\nand swor".encode())
    log.close()
    lines = STAMP.sub("", (tmp_path / "x.log").read_text()).splitlines()
    assert lines == ["it is ", "{keeper} WARNING - Ending the task", "***", "and ***"]


def test_the_rest_of_a_cut_secret_is_masked_in_the_last_words_of_a_killed_try(tmp_path):
    secrets = Secrets()
    secrets.learn("variable_get", {"key": "token"}, "tremendous-secret")
    log = TaskLog(tmp_path / "x.log", 10**6, secrets)
    log.write(f"line {CUT}\n{CUT}dous-secret".encode())
    log.close()
    assert "dous" not in (tmp_path / "x.log").read_text()


def test_output_without_a_line_end_stays_in_one_piece_before_the_keepers_last_line(tmp_path):
    secrets = Secrets()
    secrets.learn("variable_get", {"key": "token"}, "swordfish")
    log = TaskLog(tmp_path / "x.log", 10**6, secrets)
    log.write(b"in progress")
    log.flush(is_last=True)
    log.say("ERROR", "killed")
    log.close()
    lines = STAMP.sub("", (tmp_path / "x.log").read_text()).splitlines()
    assert lines == ["in progress", "{keeper} ERROR - killed"]


def test_a_log_is_cut_once_and_the_keepers_own_lines_are_still_written(tmp_path):
    log = TaskLog(tmp_path / "x.log", LENGTH_OF_STAMP + 10, Secrets())
    for _ in range(3):
        log.write(b"12345678")
    log.say("ERROR", "killed")
    log.close()
    lines = (tmp_path / "x.log").read_text().splitlines()
    assert [STAMP.sub("", lines[0]), STAMP.sub("", lines[2])] == ["1234567812", "{keeper} ERROR - killed"]
    assert len(lines) == 3


def test_every_line_begins_with_the_time_however_it_arrives(tmp_path):
    log = TaskLog(tmp_path / "x.log", 10**6, Secrets())
    for piece in (b"one\ntw", b"o", b"\n\n", b"four\n", b"five"):
        log.write(piece)
    log.say("ERROR", "killed")
    log.close()
    lines = (tmp_path / "x.log").read_text().splitlines()
    assert [bool(STAMP.match(line)) for line in lines] == [True] * 6
    assert [STAMP.sub("", line) for line in lines] == ["one", "two", "", "four", "five", "{keeper} ERROR - killed"]


def test_no_part_of_a_secret_that_is_longer_than_a_line_may_be_is_written(tmp_path):
    secrets, words = Secrets(), "".join(f"word{number}" for number in range(10_000))
    secrets.learn("variable_get", {"key": "token"}, words)
    log = TaskLog(tmp_path / "x.log", 10**6, secrets)
    for start in range(0, len(words), 70_000):
        log.write(words[start : start + 70_000].encode())
    log.write(b"\n")
    log.close()
    assert STAMP.sub("", (tmp_path / "x.log").read_text()) == "***\n"


def test_a_secret_of_the_environment_that_is_no_utf_8_is_masked():
    secrets = environment_secrets({"AIRFLOW_VAR_DB_PASSWORD": os.fsdecode(b"caf\xe9-secret")})
    assert secrets.mask(b"it is caf\xe9-secret, in a URL caf%E9-secret") == b"it is ***, in a URL ***"
    assert secrets.mask_cut_text(os.fsdecode(b"ValueError: caf\xe9-secret")) == "ValueError: ***"
