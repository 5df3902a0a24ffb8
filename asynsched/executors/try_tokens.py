"""Tokens of tries, which tell in which boot of the machine a try was submitted.

The keeper writes down each token before user code starts, so that a token starts once, whatever is killed. It does not
wait for the disk: a power cut may lose its last lines, and then no process knows which tries had begun. So a try that
was submitted before the machine was started is never started after that: see `lost_tries`.
"""

import hashlib

from asynsched.clock import new_token

_MARK_LENGTH = 8


def boot_mark(boot: str) -> str:
    """Return how the tokens of a boot begin; empty, as all tokens begin, where the system does not name its boots."""
    return hashlib.sha256(boot.encode()).hexdigest()[:_MARK_LENGTH] if boot else ""


def new_try_token(mark: str) -> str:
    """Return a new identifier: a boot's mark, and 96 random bits at least."""
    return mark + new_token()[len(mark) :]
