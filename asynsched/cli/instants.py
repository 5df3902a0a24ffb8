"""Instants that a user types: ISO 8601, in the default zone where they name none."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import click

INSTANT_FORMS = "ISO 8601, e.g. 2026-01-31T12:00:00Z; without a zone, in the setting default_timezone."


def read_instant(text: str, default_timezone: str, option: str) -> datetime:
    """Return an instant in UTC.

    Raises:
        click.BadParameter: The text is none; the message names the option.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=ZoneInfo(default_timezone))
        return instant.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise click.BadParameter(f"{text!r} is no instant: write {INSTANT_FORMS}", param_hint=option) from exc
