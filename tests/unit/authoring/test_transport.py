"""The transport of values that JSON does not have: they come back unchanged, and no other objects are made."""

import datetime as dt
import json
from collections import namedtuple
from decimal import Decimal
from zoneinfo import ZoneInfo

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynsched.authoring.transport import from_transport, readable, to_transport

VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(), st.binary(),
        st.dates(), st.timedeltas(), st.times(), st.datetimes(timezones=st.just(dt.UTC)), st.datetimes(),
        st.decimals(allow_nan=False), st.uuids(), st.frozensets(st.integers() | st.text()), st.sets(st.dates()),
        st.datetimes(timezones=st.timezones()), st.timezones(),
    ),
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple),
        st.dictionaries(st.text() | st.sampled_from(["__type__", "__value__"]), inner),
    ),
)  # fmt: skip


@given(VALUES)
def test_values_come_back_as_they_were(value):
    assert from_transport(json.loads(json.dumps(to_transport(value)))) == value


ZONE = ZoneInfo("Europe/Berlin")
OFFSET = dt.timezone(dt.timedelta(hours=5, minutes=30))
POINT = namedtuple("POINT", "x y")(1, 2)


@pytest.mark.parametrize(
    ("value", "shown", "kind"),
    [
        (dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZONE), "2024-10-27T02:30:00+01:00", dt.datetime),
        (dt.datetime(2024, 3, 31, 2, 30, tzinfo=ZONE), "2024-03-31T02:30:00+01:00", dt.datetime),
        (dt.datetime(2024, 1, 1, tzinfo=OFFSET), "2024-01-01T00:00:00+05:30", dt.datetime),
        (pendulum.datetime(2024, 10, 27, 2, 30, tz="Europe/Berlin"), "2024-10-27T02:30:00+01:00", pendulum.DateTime),
        (pendulum.naive(2024, 1, 1), "2024-01-01T00:00:00", pendulum.DateTime),
        (pendulum.date(2024, 1, 1), "2024-01-01", pendulum.Date),
        (pendulum.duration(months=1, hours=-3), "29 days, 21:00:00", dt.timedelta),
        (pendulum.timezone("Europe/Berlin"), "Europe/Berlin", type(pendulum.UTC)),
        (POINT, [1, 2], tuple),
        (float("inf"), "inf", float),
        ({"__type__": [{3, 4}]}, {"__type__": [[3, 4]]}, dict),
        ([{"a": (b"x", {"b": Decimal("1.50")})}], [{"a": ["b'x'", {"b": "1.50"}]}], list),
    ],
)
def test_types_that_json_lacks_come_back_and_are_shown_readably(value, shown, kind):
    written = json.loads(json.dumps(to_transport(value)))
    back = from_transport(written)
    assert back == value
    assert type(back) is kind
    assert getattr(back, "fold", 0) == getattr(value, "fold", 0)
    assert readable(written) == shown


@pytest.mark.parametrize(
    "written",
    [
        {"__type__": "os.system", "__value__": "true"},
        {"__type__": "datetime", "__value__": "now"},
        {"__type__": "set", "__value__": [[]]},
        {"__type__": [], "__value__": 1},
        {"__type__": "Decimal", "__value__": "one"},
        {"__type__": "tuple"},
    ],
)
def test_nothing_but_known_types_is_read_and_all_of_it_can_be_shown(written):
    with pytest.raises(ValueError, match="cannot be read"):
        from_transport([written])
    readable(written)
