"""Says in each line of a host's log which task the trigger is of that wrote it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_label: ContextVar[str] = ContextVar("label", default="")


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Put this label into the lines that are logged inside, and by what is started there."""
    token = _label.set(label)
    try:
        yield
    finally:
        _label.reset(token)


class LabellingFilter(logging.Filter):
    """Adds the label to a record's message."""

    def filter(self, record: logging.LogRecord) -> bool:
        label = _label.get()
        if label:
            record.msg, record.args = f"[{label}] {record.getMessage()}", None
        return True


def label_logs() -> None:
    """Have everything labelled that is logged in this process from now on."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(LabellingFilter())
