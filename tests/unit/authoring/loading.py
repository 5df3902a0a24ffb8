"""Imports a text as a DAG file, as a parse does."""

from types import ModuleType

from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import DAG, collect_dags


def load(text: str, path: str = "/dags/file.py") -> list[DAG]:
    """Return the DAGs of a DAG file."""
    forget_registered()
    module = ModuleType("dag_file")
    module.__file__ = path
    exec(compile(text, path, "exec"), vars(module))
    return collect_dags(module)


def load_one(text: str) -> DAG:
    """Return the only DAG of a DAG file."""
    (dag,) = load(text)
    return dag
