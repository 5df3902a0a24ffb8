"""Timezones by name, and conversions between instants and wall-clock times.

The calendar has the years 1 to 9999, and date arithmetic overflows at its ends. Here an overflow is an error of the
schedule or date that causes it.
"""

from datetime import UTC, datetime, timedelta, timezone, tzinfo

from asynsched.errors import TimetableError

MAX_ZONE_LENGTH = 100


def zone_named(name: str) -> tzinfo:
    """Return the timezone with an IANA name or an offset such as `+02:00`. Raises TimetableError for unknown names."""
    if name.upper() == "UTC":
        return UTC
    if name[:1] in ("+", "-"):
        return _fixed_offset(name)
    from zoneinfo import ZoneInfo

    try:
        if len(name) <= MAX_ZONE_LENGTH:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise TimetableError(_no_zone(name)) from exc
    raise TimetableError(_no_zone(name[:MAX_ZONE_LENGTH] + "…"))


def _no_zone(name: str) -> str:
    return f"there is no timezone {name!r}; use an IANA name such as 'Europe/Berlin'"


def _fixed_offset(name: str) -> tzinfo:
    try:
        offset = datetime.strptime(name, "%z").utcoffset()
        assert offset is not None
        return timezone(offset)
    except ValueError as exc:
        raise TimetableError(f"{name!r} is not an offset from UTC; write it as +HH:MM") from exc


def iana_name(zone: tzinfo | None) -> str | None:
    """Return the IANA name of a timezone of the standard library, pendulum, pytz or dateutil; None if it has none."""
    names = (getattr(zone, attribute, None) for attribute in ("key", "name", "zone"))
    found = next((name for name in names if isinstance(name, str) and name), None)
    file = getattr(zone, "_filename", None)  # dateutil keeps only the name of the zone's file
    return found or (file.partition("/zoneinfo/")[2] or None if isinstance(file, str) else None)


def zone_name(zone: tzinfo) -> str:
    """Return the name for `zone_named`: the IANA name, or the offset. Raises TimetableError if it has neither."""
    if name := iana_name(zone):
        return name
    offset = zone.utcoffset(None)
    if offset is None:
        raise TimetableError(
            f"the timezone {zone!r:.100} has no IANA name, and no offset that always applies; use"
            " zoneinfo.ZoneInfo('Europe/Berlin'), for example"
        )
    return str(timezone(offset)).removeprefix("UTC") or "UTC"


def as_zone(value: str | tzinfo) -> tzinfo:
    """Return the standard library's timezone for a name, or for another library's. Raises TimetableError if none."""
    if isinstance(value, str):
        return zone_named(value)
    if isinstance(value, tzinfo):
        return zone_named(zone_name(value))
    raise TimetableError(f"timezone must be a name or a tzinfo, not {type(value).__name__}")


def in_zone(instant: datetime, zone: tzinfo) -> datetime:
    """Return an aware instant in another timezone. Raises TimetableError if that is outside of the calendar."""
    try:
        return instant.astimezone(zone)
    except OverflowError:
        raise TimetableError(
            f"the date {instant.isoformat()} leads out of the calendar, which has the years 1 to 9999, in the zone"
            f" {zone}"
        ) from None


def moved(moment: datetime, by: timedelta) -> datetime:
    """Return `moment + by`. Raises TimetableError if that is outside of the calendar."""
    try:
        return moment + by
    except OverflowError:
        raise TimetableError(
            f"the date {moment.isoformat()} leads out of the calendar, which has the years 1 to 9999"
        ) from None


def wall_clock(instant: datetime, zone: tzinfo) -> datetime:
    """Return the naive wall-clock time, without a fold, at an aware instant. Raises TimetableError like `in_zone`."""
    return in_zone(instant, zone).replace(tzinfo=None, fold=0)


def instant_of(wall: datetime, zone: tzinfo) -> datetime:
    """Return the instant, in UTC, of a wall-clock time.

    A skipped time is moved later by the length of the gap; a repeated time means its second occurrence. Both follow
    from the smaller of the two offsets that Python has for such a time.

    Raises:
        TimetableError: The instant is outside of the calendar.

    Source: Airflow's `make_aware`.
    """
    offsets = [wall.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1)]
    return moved(wall, -min(offset for offset in offsets if offset is not None)).replace(tzinfo=UTC)


def instants_of(wall: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return the two instants, in UTC, that a wall-clock time can mean; they are equal unless the clock changes.

    The first is later than the second only for a skipped time, and is then moved by the gap. Raises TimetableError if
    an instant is outside of the calendar.
    """
    first, last = (
        moved(wall, -wall.replace(tzinfo=zone, fold=fold).utcoffset()).replace(tzinfo=UTC)  # type: ignore[operator]
        for fold in (0, 1)
    )
    return first, last
