"""The form of DAGs that crosses the border between user code and the scheduler."""
