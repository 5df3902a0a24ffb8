"""An ordinary user, for tests that root runs."""

from sandbox import confine as privileges

ORDINARY_UID = 54321


def become_ordinary() -> None:
    """Make this process that user's. The capability to read stands for a Python that is readable for all."""
    # Root's own Python may be below /root.
    privileges.become_user(ORDINARY_UID, keep_reading=True)
