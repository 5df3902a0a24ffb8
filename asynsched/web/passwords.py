"""Verifies passwords, and limits how often they may be guessed."""

from collections import OrderedDict
from datetime import timedelta

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from asynsched.clock import Clock
from asynsched.queries.users import LONGEST_PASSWORD
from asynsched.web.access import TooManyAttempts

AT_ONCE = 2
"""Hashes that are computed at once: each takes 64 MiB for a few tens of milliseconds."""
MOST_WAITING = 50
_NOBODYS = "$argon2id$v=19$m=65536,t=3,p=4$U71RWXlHe5NGMfq/ONmxZg$+Ord2taRm/DcxgjjZ4iqX+X9LP7sqdDRIUaMTeDOMHM"
"""Verified for unknown names, which then take as long as known ones."""
_hasher = PasswordHasher()


class Passwords:
    """Verifies passwords in threads, a few at once, beside the event loop."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(AT_ONCE)

    async def are_right(self, password: str, password_hash: str | None) -> bool:
        """Whether a password has this hash; never if there is none. Raises TooManyAttempts if too many are waiting."""
        if self._limiter.statistics().tasks_waiting >= MOST_WAITING:
            raise TooManyAttempts(1)
        is_right = await run_sync(
            _verify, password[:LONGEST_PASSWORD], password_hash or _NOBODYS, limiter=self._limiter
        )
        return is_right and password_hash is not None


def _verify(password: str, password_hash: str) -> bool:
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError, UnicodeEncodeError):
        return False


class Attempts:
    """Counts failed attempts by a key, such as an address, and refuses more than a number within a time.

    Kept in memory, for this process: with several processes an attacker has as many more attempts.
    """

    MOST_KEYS = 10_000

    def __init__(self, clock: Clock, most: int, within: timedelta) -> None:
        self._clock = clock
        self._most = most
        self._within = within.total_seconds()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def begin(self, key: str) -> None:
        """Note an attempt as failed, until `succeeded` is called. Raises TooManyAttempts."""
        now = self._clock.monotonic()
        recent = [at for at in self._failures.get(key, ()) if at > now - self._within]
        if len(recent) >= self._most:
            raise TooManyAttempts(max(1, round(recent[0] + self._within - now)))
        self._failures[key] = [*recent, now]
        self._failures.move_to_end(key)
        if len(self._failures) > self.MOST_KEYS:
            self._failures.popitem(last=False)

    def succeeded(self, key: str) -> None:
        """Forget the last attempt: it was a good one."""
        if attempts := self._failures.get(key):
            attempts.pop()
