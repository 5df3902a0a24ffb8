"""The functions of `timezone` for DAG files. The expected instants are those of Airflow 3.3.2."""

import datetime as dt
from zoneinfo import ZoneInfo

import pendulum
import pytest

from asynsched import timezone

PARIS = ZoneInfo("Europe/Paris")
NOON = dt.datetime(2024, 5, 1, 12)
REPEATED, SKIPPED = dt.datetime(2024, 10, 27, 2, 30), dt.datetime(2024, 3, 31, 2, 30)


@pytest.fixture
def _in_paris(monkeypatch):
    monkeypatch.setattr(timezone, "_default", PARIS)


@pytest.mark.parametrize(
    ("text", "options", "instant"),
    [
        ("2024", {}, "2024-01-01T00:00:00+01:00"),
        ("2024-05", {}, "2024-05-01T00:00:00+02:00"),
        ("1 May 2024", {}, "2024-05-01T00:00:00+02:00"),
        ("2024-05-01T12:00", {"timezone": "Asia/Tokyo"}, "2024-05-01T12:00:00+09:00"),
        ("2024-05-01T12:00Z", {"timezone": PARIS}, "2024-05-01T12:00:00+00:00"),
        ("2024-10-27T02:30", {}, "2024-10-27T02:30:00+01:00"),
        ("2024-03-31T02:30", {}, "2024-03-31T03:30:00+02:00"),
    ],
)
@pytest.mark.usefixtures("_in_paris")
def test_a_text_is_a_pendulum_date_and_asynsched_reads_it_alike(text, options, instant):
    found = timezone.parse(text, **options)
    assert found.isoformat() == instant
    assert found.add(days=1) > found
    if not isinstance(options.get("timezone"), str):
        assert timezone.to_utc(text, options.get("timezone")).timestamp() == found.timestamp()


def test_a_strict_text_is_a_date_of_iso_8601():
    assert timezone.parse("2024-05-01", strict=True) == dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    with pytest.raises(ValueError, match="1 May 2024"):
        timezone.parse("1 May 2024", strict=True)


@pytest.mark.parametrize(
    ("convert", "instant"),
    [
        (lambda: timezone.coerce_datetime(NOON, PARIS), "2024-05-01T12:00:00+02:00"),
        (lambda: timezone.coerce_datetime(NOON.replace(tzinfo=dt.UTC), PARIS), "2024-05-01T12:00:00+00:00"),
        (lambda: timezone.coerce_datetime(pendulum.naive(2024, 5, 1)), "2024-05-01T00:00:00+02:00"),
        (lambda: timezone.convert_to_utc(NOON), "2024-05-01T10:00:00+00:00"),
        (lambda: timezone.convert_to_utc(REPEATED), "2024-10-27T00:30:00+00:00"),
        (lambda: timezone.make_aware(pendulum.naive(2024, 5, 1)), "2024-05-01T00:00:00+02:00"),
        (lambda: timezone.from_timestamp(0), "1970-01-01T00:00:00+00:00"),
    ],
)
@pytest.mark.usefixtures("_in_paris")
def test_dates_become_pendulum_dates(convert, instant):
    found = convert()
    assert found.isoformat() == instant
    assert found.add(days=1) > found


@pytest.mark.usefixtures("_in_paris")
def test_wall_clock_times_that_the_clock_changes_are_those_after_the_change():
    assert timezone.make_aware(REPEATED).isoformat() == "2024-10-27T02:30:00+01:00"
    assert timezone.make_aware(SKIPPED).isoformat() == "2024-03-31T03:30:00+02:00"
    assert timezone.datetime(2024, 5, 1).tzinfo is PARIS
    assert timezone.datetime(2024, 5, 1, tzinfo=dt.UTC).tzinfo is dt.UTC
    assert [timezone.make_aware(None), timezone.coerce_datetime(None), timezone.convert_to_utc(None)] == [None] * 3
