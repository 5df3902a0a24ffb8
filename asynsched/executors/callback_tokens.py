"""Tokens of callbacks, which tell their processes from those of tasks.

What an executor reports when it starts may be of a launch by an earlier scheduler: nothing but the token says then
which of the two it is.
"""

from asynsched.clock import new_token

_PREFIX = "callback-"


def new_callback_token() -> str:
    """Return a new random identifier: 92 bits, as long as a task's token, so that it fits into the same columns."""
    token = new_token()
    return _PREFIX + token[len(_PREFIX) :]


def is_callback_token(token: str) -> bool:
    """Return whether a token was given to a callback."""
    return token.startswith(_PREFIX)
