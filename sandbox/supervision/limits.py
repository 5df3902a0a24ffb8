"""What limits every try of a keeper."""

from typing import NamedTuple


class Limits(NamedTuple):
    """Limits of every try: seconds and bytes."""

    import_timeout: float
    kill_time: float
    log_bytes: int
