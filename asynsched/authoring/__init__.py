"""The names that DAG files import.

No module here imports `typing`, `inspect`, `logging` or anything heavier at the top, so that a DAG file loads only the
modules it uses, and a task's process starts quickly. The functions that need such a module import it, and names for
annotations only are imported under `TYPE_CHECKING`.
"""
