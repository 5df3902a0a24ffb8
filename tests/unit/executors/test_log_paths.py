"""Where logs are: readable for ordinary ids, safe and distinct for all."""

from hypothesis import given
from hypothesis import strategies as st

from asynsched.executors.log_paths import log_path
from asynsched.keys import TaskInstanceKey

ids = st.text(min_size=1, max_size=250)


def test_ordinary_ids_are_in_airflows_layout():
    key = TaskInstanceKey("my_dag", "manual__2030-01-01T00:00:00+00:00", "group.task")
    assert log_path(key, 2) == "dag_id=my_dag/run_id=manual__2030-01-01T00:00:00+00:00/task_id=group.task/attempt=2.log"
    mapped = log_path(key._replace(map_index=3), 1)
    assert mapped.endswith("/task_id=group.task/map_index=3/attempt=1.log")


@given(ids, ids, ids)
def test_any_id_makes_a_path_of_five_short_names_that_stays_inside(dag_id, run_id, task_id):
    names = log_path(TaskInstanceKey(dag_id, run_id, task_id), 1).split("/")
    assert len(names) == 4
    assert not {".", "..", ""} & set(names)
    assert all(len(name.encode()) <= 255 and "\0" not in name for name in names)


@given(ids, ids)
def test_different_ids_never_share_a_path(one, other):
    paths = {log_path(TaskInstanceKey(name, "r", "t"), 1) for name in (one, other)}
    assert len(paths) == len({one, other})


@given(st.text("a/.", min_size=1, max_size=6), st.text("a/.", min_size=1, max_size=6))
def test_separators_in_ids_do_not_make_two_keys_meet(one, other):
    assert (log_path(TaskInstanceKey(one, "r", "t"), 1) == log_path(TaskInstanceKey(other, "r", "t"), 1)) == (
        one == other
    )
