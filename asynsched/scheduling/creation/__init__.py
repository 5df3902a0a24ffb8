"""Which runs are made, and when: by schedule, by assets, by backfills, by tasks and by people."""
