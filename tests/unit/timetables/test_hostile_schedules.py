"""Any text as a schedule or a zone gives a timetable that can be asked, or one error in one line."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asynsched.errors import DagError, TimetableError
from asynsched.timetables import CronTriggerTimetable
from asynsched.timetables.base import TimeRestriction
from asynsched.timetables.simple import timetable_from_schedule

NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
signs = st.sampled_from(["*", "/", "-", ",", "#", "L", "W", "?", "H", "R", "@", "(", ")", "MON", "JAN", "sun", "\0"])
numbers = st.integers(-1, 10**6).map(str) | st.sampled_from(["0", "5", "59", "60", "9" * 20, "٣", "1e9", "\ud800"])
valid = st.sampled_from(["*", "*/2", "1-5", "0", "3,4", "L", "1"])
fields = valid | st.lists(signs | numbers, min_size=1, max_size=5).map("".join)
texts = st.lists(fields, min_size=4, max_size=7).map(" ".join) | st.text(max_size=60)


@given(texts, st.sampled_from(["UTC", "Europe/Berlin"]) | st.text(max_size=20))
@example("* " * 499 + "*", "UTC")
@example("0 0 * * *", "UTC")
@example("*/7 L-3,5 * JAN-MAR sun#2", "Europe/Berlin")
@example("0 0 1 1 * 0 1990", "UTC")
@example("0 0 30 2 *", "UTC")
@example("@every 5m", "UTC")
@example("0 0 * * *", "../../etc/passwd")
@example("0 0 * * *", "/etc/localtime")
@example("0 0 * * *", "a" * 5_000)
def test_any_text_makes_a_timetable_or_one_error(text: str, zone: str):
    try:
        timetable = timetable_from_schedule(text, zone)
    except DagError as exc:
        said = exc
    else:
        between = TimeRestriction(earliest=NOW, latest=None, catchup=False)
        try:
            found = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=between, now=NOW)
        except TimetableError:
            return  # years that lie in the past
        assert found is None or found.run_after.tzinfo is not None
        assert timetable.description is not None
        return
    assert "\n" not in str(said)
    assert len(str(said)) < 7_000


def test_a_zone_that_is_a_path_is_no_zone():
    with pytest.raises(DagError):
        CronTriggerTimetable("0 0 * * *", timezone="../../../etc/shadow")
