"""Loads what tries need before anything is forked: what is loaded here is loaded in no try."""

import importlib
import pkgutil

import asynsched.authoring
from sandbox.running.loading import freeze_heap

_NEEDED_WITHIN_FUNCTIONS = (
    "inspect", "jinja2", "jinja2.nativetypes", "pendulum", "pendulum.locales.en.locale", "subprocess", "tempfile",
    "traceback", "typing", "zoneinfo",
)  # fmt: skip
"""Modules that the authoring names import only when they are used."""


def warm() -> None:
    """Import everything that a task commonly needs, and settle the heap for forking."""
    for module in pkgutil.walk_packages(asynsched.authoring.__path__, "asynsched.authoring."):
        importlib.import_module(module.name)
    for name in _NEEDED_WITHIN_FUNCTIONS:
        importlib.import_module(name)
    freeze_heap()
