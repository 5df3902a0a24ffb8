"""What DAG files import.

Nothing here imports `typing`, `inspect`, `logging` or anything heavier when it is loaded: a DAG file pays for what it
uses, and a task's process starts with as little as it needs. Such modules are imported inside the functions that use
them; names for annotations only, under `TYPE_CHECKING`.
"""
