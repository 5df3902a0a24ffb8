"""One parse: the process that runs the DAG file, and the one that watches it."""
