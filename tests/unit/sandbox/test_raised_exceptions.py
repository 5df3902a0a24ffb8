"""The transport of an exception to a callback in another process."""

import msgspec
import pytest

from asynsched import AsynschedException, AsynschedFailException
from asynsched.protocol.messages import RaisedException
from sandbox.run import described, rebuilt


class TwoArguments(Exception):
    def __init__(self, code, *, hint):
        super().__init__(code, hint)


class Formatted(Exception):
    def __init__(self, code):
        self.code = code

    def __str__(self):
        return f"code {self.code}"


class Refuses(Exception):
    def __new__(cls, *args):
        if args != ("right",):
            raise TypeError("wrong")
        return super().__new__(cls, *args)

    def __str__(self):
        return "always"


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Outer:
    class Inner(ValueError):
        pass


def local_class():
    class Hidden(Exception):
        pass

    return Hidden("seen")


@pytest.mark.parametrize(
    ("exc", "kind", "text"),
    [
        (ValueError("no luck"), ValueError, "no luck"),
        (KeyError("name"), KeyError, "'name'"),
        (FileNotFoundError(2, "No such file", "x.csv"), FileNotFoundError, "[Errno 2] No such file: 'x.csv'"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), AsynschedException, None),
        (AsynschedFailException("enough"), AsynschedFailException, "enough"),
        (TwoArguments(1, hint="two"), TwoArguments, "(1, 'two')"),
        (Mute("x"), Mute, None),
        (Outer.Inner("nested"), Outer.Inner, "nested"),
        (ValueError(object), ValueError, "<class 'object'>"),
        (Formatted(5), AsynschedException, "Formatted: code 5"),
        (Refuses("right"), Refuses, "always"),
        (ValueError("a\udc80b", 10**40), ValueError, f"('a\\udc80b', {10**40})"),
        (ValueError("a\udc80b"), ValueError, r"a\udc80b"),
        (local_class(), AsynschedException, "local_class.<locals>.Hidden: seen"),
        (ValueError("x" * 20_000), ValueError, f"{'x' * 10_000}…"),
    ],
)
def test_an_exception_arrives_with_its_class_and_words_where_both_can_be_had(exc, kind, text):
    sent = msgspec.json.decode(msgspec.json.encode(described(exc)), type=RaisedException)
    found = rebuilt(sent, "")
    assert type(found) is kind
    assert text is None or str(found) == text


def test_nothing_is_imported_to_rebuild_an_exception():
    for module, name in (("antigravity", "AntiError"), ("os", "system"), ("builtins", "int"), ("nowhere", "E")):
        found = rebuilt(RaisedException(module, name, "text", ("true",)), "")
        assert (type(found), str(found)) == (AsynschedException, f"{name}: text")


def test_a_try_that_was_ended_from_outside_has_its_reason_as_exception():
    assert str(rebuilt(None, "killed by SIGKILL")) == "killed by SIGKILL"
