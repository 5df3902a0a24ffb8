"""The serialized form of DAGs, in which they pass from user code to the scheduler."""
