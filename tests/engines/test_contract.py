"""Tries through an engine do what tries of every executor do."""

from tests.integration.remote.test_contract import (
    test_a_try_is_ended_for_a_user_and_runs_again_after_that,
    test_callbacks_run_where_a_setting_says,
    test_many_tries_end_once_each,
    test_tasks_defer_reach_time_limits_update_assets_and_keep_large_values,
    test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs,
)

__all__ = [
    "test_a_try_is_ended_for_a_user_and_runs_again_after_that",
    "test_callbacks_run_where_a_setting_says",
    "test_many_tries_end_once_each",
    "test_tasks_defer_reach_time_limits_update_assets_and_keep_large_values",
    "test_tasks_run_once_with_their_version_of_the_code_and_leave_whole_masked_logs",
]
