"""Exceptions on their way from the try that raised them to callbacks in another process; never as a pickle."""

import sys

import msgspec

from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.running.tracebacks import text_of
from asynsched.protocol.messages import RaisedException

LONGEST_MESSAGE = 10_000
_PLAIN = (str, int, float, bool, type(None))
_NOTE = "raised in the task's own process; the traceback is in the log of its try"


def described(exc: BaseException) -> RaisedException:
    """Return what is told of an exception."""
    cls = type(exc)
    message = text_of(exc)
    raised = RaisedException(str(cls.__module__), cls.__qualname__, message[:LONGEST_MESSAGE])
    if len(message) > LONGEST_MESSAGE or not all(type(argument) in _PLAIN for argument in exc.args):
        return raised
    with_arguments = msgspec.structs.replace(raised, arguments=tuple(exc.args))
    try:
        msgspec.json.encode(with_arguments)
    except (ValueError, OverflowError):
        return raised
    return with_arguments


def rebuilt(raised: RaisedException | None, reason: str) -> BaseException:
    """Return an exception like the one that was raised: of its class, with its words, without its traceback.

    Its class is one that this process has loaded already, and is made without its `__init__`, whose other arguments
    nobody knows. Where that cannot be, and for a try that did not end by an exception, it is an AsynschedException.

    Args:
        raised: What is told of it; None for a try that was ended from outside.
        reason: Why the try ended, in one line.
    """
    if raised is None:
        return AsynschedException(reason)
    cls = _loaded_class(raised)
    if cls is not None:
        for arguments in (raised.arguments, (raised.message,)):
            exc = _made(cls, arguments)
            if exc is not None and text_of(exc) == raised.message:
                exc.add_note(_NOTE)
                return exc
    return AsynschedException(f"{raised.qualname}: {raised.message}")


def _loaded_class(raised: RaisedException) -> type[BaseException] | None:
    found: object = sys.modules.get(raised.module)
    for name in raised.qualname.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _made(cls: type[BaseException], arguments: tuple[object, ...]) -> BaseException | None:
    try:
        exc = cls.__new__(cls, *arguments)
        exc.args = arguments
    except Exception:  # noqa: BLE001 - it is user code
        return None
    return exc
