"""A scheduler's memory does not grow with its past work. `python -m tests.soak` lets one live for long."""

from datetime import timedelta

from tests.soak.life import Life


def test_a_scheduler_that_has_done_more_holds_no_more(tmp_path):
    _, settled, *_, last = Life(tmp_path, n_dags=3, period=timedelta(hours=2)).live(4)
    n_tries = last.launched - settled.launched
    assert n_tries > 150
    assert last.objects - settled.objects < n_tries / 5, "its data about each try is forgotten"
    assert last.database_bytes < 1.3 * settled.database_bytes
