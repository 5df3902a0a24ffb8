"""The names by which tasks call executors."""

from collections.abc import Collection

from asynsched.settings import AIRFLOWS_EXECUTORS

OURS = {theirs: ours for ours, theirs in AIRFLOWS_EXECUTORS.items()}
"""Our kinds of executors by the names of Airflow's classes."""


def executor_called(name: str, known: Collection[str]) -> str:
    """Return which of the known executors a task calls by a name; the name itself if it is none of them.

    A DAG file for Airflow may call an executor by its class there, such as `KubernetesExecutor`, with or without the
    module: it means the executor of that kind.
    """
    ours = name if name in known else OURS.get(name.rpartition(".")[2], name)
    return ours if ours in known else name
