"""The creation of runs: by schedules, assets, backfills, tasks and people."""
