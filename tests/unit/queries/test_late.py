"""Users who may see some DAGs see all that is late of these, although the list of all DAGs is cut."""

from datetime import UTC, datetime, timedelta

from asynsched.queries.late import Late, LateItem

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)


def one(dag_id: str, minutes: int, reason: str = "") -> LateItem:
    return LateItem(dag_id=dag_id, run_id=None, state="due", since=NOON + timedelta(minutes=minutes), reason=reason)


def test_rows_of_their_dags_are_added_that_the_list_of_all_lacks():
    late = Late(NOON, (one("theirs", 0, "paused"), one("other", 1, "full")), "")
    own = (one("theirs", 0), one("cut_off", -1))
    assert late.of_dags(frozenset({"theirs", "cut_off"}), own).rows == (one("cut_off", -1), one("theirs", 0, "paused"))
    assert late.of_dags(None, ()) == late
