"""What a parse may read, what it gets, and what is kept of that."""

import json
import re
import threading
from urllib.parse import quote

import msgspec
import pytest
import sqlalchemy as sa

from asynsched.parsing.readable_secrets import (
    MOST_ANSWER_BYTES,
    MOST_BYTES_OF_ANSWERS,
    NOT_SHOWN,
    Asking,
    ReadableSecrets,
    refused,
    with_other_options,
)
from asynsched.protocol.parse_messages import Answered, Asked, ParseLimits, answer_line
from asynsched.protocol.secrets import MASK, MAX_SECRETS
from asynsched.serialization.asked_names import AskedName
from asynsched.serialization.schema import SCHEMA_VERSION, FileError, ParseReport
from asynsched.settings import ParseSettings
from asynsched.store.schema import metadata
from asynsched.store.secrets import ConnectionRow, Sealed, set_connection, set_variable


@pytest.mark.parametrize(
    ("variables", "name", "allowed"),
    [
        (("*",), "any", True),
        ((), "any", False),
        (("team_*", "word"), "team_a", True),
        (("team_*", "word"), "word", True),
        (("team_*", "word"), "words", False),
        (("Team_*",), "team_a", False),
        (("v[12]",), "v2", True),
    ],
)
def test_patterns_say_which_names_a_parse_may_read(variables, name, allowed):
    found = refused("variable", name, ParseSettings(variables=variables))
    assert (found is None) == allowed
    assert found is None or f"add {name!r} to it" in found


@pytest.fixture
def conn():
    engine = sa.create_engine("sqlite://")
    with engine.begin() as conn:
        metadata.create_all(conn)
        yield conn
    engine.dispose()


async def test_a_parse_gets_values_and_their_digests(conn):
    async def read(query, *args):
        return query(conn, *args)

    set_variable(conn, "word", "hello")
    set_variable(conn, "large", "x" * MOST_ANSWER_BYTES)
    set_connection(conn, ConnectionRow("db", "postgres", password="hunter22"))
    secrets = ReadableSecrets(ParseSettings(variables=("word", "large", "nul*"), connections=("db",)), read)
    asking = Asking(secrets)

    async def answer(kind, name):
        return await asking.answer(Asked(kind, name, 7))

    assert await answer("variable", "word") == Answered(7, "hello")
    assert (await answer("connection", "db")).value["password"] == "hunter22"
    assert (await answer("variable", "nul\0")) == Answered(7, is_found=False, error="there is no variable 'nul\\x00'")
    assert "too many for a parse" in (await answer("variable", "large")).error
    assert "parse.variables allows only" in (await answer("variable", "other")).error

    digests = {(one.kind, one.name): one.digest for one in asking.asked}
    assert digests == await secrets.digests(digests)
    assert digests["variable", "other"] == "refused"
    assert digests["variable", "nul\0"] == ""
    set_variable(conn, "word", "bye")
    changed = await secrets.digests(digests)
    assert {key for key in digests if changed[key] != digests[key]} == {("variable", "word")}

    found = FileError("exception", "hunter22 is wrong", "raise hunter22")
    report = ParseReport(SCHEMA_VERSION, "a.py", errors=(found,), warnings=(found,), output="hunter22",
                         asked=(AskedName("option", "core.parallelism"), AskedName("variable", "forged")))  # fmt: skip
    report = await asking.completed(report, ParseLimits(airflow_options={"core.parallelism": "7"}))
    assert "hunter22" not in str(report)
    assert {one.name for one in report.asked} == {"word", "db", "nul\0", "large", "other", "core.parallelism"}
    assert not with_other_options(report.asked, {"core.parallelism": "7", "core.executor": "x"})
    assert with_other_options(report.asked, {"core.parallelism": "8"})
    assert with_other_options(report.asked, {})


def reported(output="", message="", traceback="", warning=""):
    errors = (FileError("exception", message, traceback),) if message else ()
    warnings = (FileError("warning", warning),) if warning else ()
    return ParseReport(SCHEMA_VERSION, "a.py", errors=errors, warnings=warnings, output=output)


@pytest.fixture
def asking_for():
    """Return a function that returns questions about variables with given values, which are not encrypted."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False})
    metadata.create_all(engine)

    def asking(values, calls=None):
        with engine.begin() as conn:
            for name, value in values.items():
                set_variable(conn, name, value)

        async def read(query, *args):
            if calls is not None:
                calls.append(args)
            with engine.connect() as conn:
                return query(conn, *args)

        return Asking(ReadableSecrets(ParseSettings(variables=("*",)), read))

    yield asking
    engine.dispose()


LIMITS = ParseLimits(output_bytes=100)


@pytest.fixture
def shown(asking_for):
    """Return a function that returns what is kept of a report whose parse has read variables with given values."""

    async def kept(values, report):
        asking = asking_for(values)
        for number, name in enumerate(values, start=1):
            await asking.answer(Asked("variable", name, number))
        return await asking.completed(report, LIMITS)

    return kept


async def test_the_longest_secret_is_masked_first(shown):
    found = await shown({"token_a": "secret1", "token_b": "secret12"}, reported("secret1 secret12"))
    assert found.output == "*** ***"


async def test_texts_of_a_parse_are_masked_as_the_log_of_a_task_is(shown):
    secret = "ab/cd\"ef'gh\nline-two  of-it"
    texts = [quote(secret, safe=""), repr(secret), json.dumps({"a": secret}), "line-two  of-it", "line-two of-it"]
    for text in texts:
        found = await shown({"token": secret}, reported(text, f"a.py: {text} is wrong", text, text))
        for one in (found.output, found.errors[0].message, found.errors[0].traceback, found.warnings[0].message):
            assert "***" in one
            assert not re.search("ab|of-it", one)


@pytest.mark.parametrize(
    ("report", "of", "expected"),
    [
        (reported("x" * 93 + "swordfi"), "output", "x" * 93 + "***"),
        (reported("x" * 92 + "swordfi"), "output", "x" * 92 + "swordfi"),
        (reported("x" * 94 + "kéy\ufffd"), "output", "x" * 94 + "***"),
        (reported(message="a.py: no swordf…; do it in a task"), "message", "a.py: no ***…; do it in a task"),
        (reported(message="e", traceback="…rdfish is wrong"), "traceback", "…*** is wrong"),
        (reported(message="x" * 3_995 + "swordfish"), "message", "x" * 3_995 + "***"),
        (reported(warning="x" * 995 + "sword"), "message", "x" * 995 + "***"),
    ],
    ids=["output", "a whole output", "in a character", "message", "traceback", "too long", "warning"],
)
async def test_a_piece_of_a_secret_at_a_cut_is_masked(shown, report, of, expected):
    found = await shown({"token": "swordfish", "api_key": "kéywörd"}, report)
    error = (*found.errors, *found.warnings, None)[0]
    assert (found.output if error is None else getattr(error, of)) == expected


async def test_texts_are_not_shown_where_the_secrets_are_too_many_to_mask(shown):
    many = {"token": json.dumps([f"secret {number}" for number in range(MAX_SECRETS)])}
    found = await shown(many, reported("secret 7", "secret 8", "secret 9", "secret 10"))
    assert [found.output, found.errors[0].message, found.errors[0].traceback, found.warnings[0].message] == [
        NOT_SHOWN
    ] * 4


async def test_a_long_report_is_searched_for_secrets_up_to_a_limit(shown):
    error = FileError("exception", "m" * 100_000, "swordfish" * 10_000)
    report = reported("swordfish")
    report = msgspec.structs.replace(report, errors=(error,) * 100)
    found = await shown({"token": "swordfish"}, report)
    assert "swordfish" not in str(found)
    assert found.errors[0].message == "m" * 4_000
    assert found.errors[-1].message == found.output == NOT_SHOWN


async def test_a_value_that_is_nested_too_deeply_is_an_answer_like_others(asking_for):
    nested = "[" * 5_000
    asking = asking_for({"token": nested, "tables": nested})
    for name in ("token", "tables"):
        assert (await asking.answer(Asked("variable", name, 1))).value == nested
    assert (await asking.completed(reported(nested), LIMITS)).output == MASK.decode()


async def test_each_variable_is_read_once_and_all_have_a_limit_together(asking_for):
    large, calls = "x" * 1_000_000, []
    asking = asking_for({"large": large}, calls)
    n_given = MOST_BYTES_OF_ANSWERS // len(large)
    for number in range(n_given):
        answer = await asking.answer(Asked("variable", "large", number))
        assert answer_line(answer) == answer_line(Answered(number, large))
    assert len(calls) == 1
    refused = await asking.answer(Asked("variable", "large", 7))
    assert "the file has read more than 32 MiB of variables and connections" in refused.error
    assert refused.value is None


async def test_a_large_answer_is_worked_on_by_a_thread(asking_for, monkeypatch):
    threads = set()
    decode = json.loads
    monkeypatch.setattr(json, "loads", lambda text: threads.add(threading.get_ident()) or decode(text))
    monkeypatch.setattr(Sealed, "open", lambda sealed: threads.add(threading.get_ident()) or opened(sealed))
    asking = asking_for({"large": json.dumps(["x" * 100_000]), "small": "[]"})
    await asking.answer(Asked("variable", "large", 1))
    assert threads
    assert threading.get_ident() not in threads
    await asking.answer(Asked("variable", "small", 2))
    assert threading.get_ident() in threads


opened = Sealed.open
