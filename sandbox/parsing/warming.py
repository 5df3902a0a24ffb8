"""Loads what parses need before anything is forked, and tells when packages have changed on the disk since."""

import os
import sys
from types import ModuleType

from asynsched.authoring.active import forget_registered
from asynsched.authoring.dag import collect_dags
from asynsched.protocol.parse_setup import ParseLimits
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SourceFile, version_hash
from asynsched.timetables.cron import PRESETS, CronSchedule
from sandbox.confine import prepare
from sandbox.running.loading import freeze_heap, import_authoring
from sandbox.sources.local_imports import dag_module_name

_NEEDED_WITHIN_FUNCTIONS = (
    "sandbox.confinement.privileges", "sandbox.confinement.seccomp", "sandbox.parsing.explain",
    "sandbox.sources.archives",
)  # fmt: skip
"""Modules that a parse imports only when it needs them."""

_DAG_FILE = """
from datetime import datetime
from asynsched import DAG, EmptyOperator, chain, task

@task
def work(value):
    return value

with DAG("warm", schedule="@daily", start_date=datetime(2024, 1, 1)):
    chain(EmptyOperator(task_id="first"), work(1))
"""


def warm(limits: ParseLimits) -> None:
    """Import what a parse commonly needs, run one of our own to fill the caches, settle the heap for forking."""
    import_authoring(_NEEDED_WITHIN_FUNCTIONS)
    prepare(limits)
    for preset in PRESETS:
        CronSchedule(preset, "UTC")  # remembered: what most DAGs have is read once
    _define_dag()
    freeze_heap()


def _define_dag() -> None:
    """Parse a file of our own, so that every fork finds caches filled and patterns compiled."""
    module = ModuleType(dag_module_name("warm.py"))
    sys.modules[module.__name__] = module
    try:
        exec(_DAG_FILE, vars(module))  # noqa: S102 - our own text, above
        for dag in collect_dags(module):
            version_hash(serialize_dag(dag), (SourceFile("warm.py", module.__name__, "", _DAG_FILE),))
    finally:
        del sys.modules[module.__name__]
        forget_registered()


Installed = tuple[tuple[str, int], ...]


def installed() -> Installed:
    """Return what changes when a package that this interpreter sees is installed, upgraded or removed."""
    return tuple((entry, _modified_ns(entry)) for entry in sys.path)


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - asked before each parse, about each entry
    except OSError:
        return 0
