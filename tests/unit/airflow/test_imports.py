"""The names that official providers and public DAG files import: each is served, or refused with a reason.

Source: import statements of 34 official providers and of 634 public DAG files, November 2026.
"""

import importlib
import json
from pathlib import Path

import pytest

from asynsched.airflow import finder, names
from tests.unit.airflow.test_names import airflow  # noqa: F401 - a fixture

FOLDER = Path(__file__).parent
TABLES = ("provider_imports", "dag_file_imports")


def imports_of(table):
    """Return the imports of a table, as (module, name); the name is empty for the module itself."""
    found = json.loads((FOLDER / f"{table}.json").read_text())["names"]
    # A name without a module is one of the providers' own.
    return [(one["module"], one["name"]) for one in found if one["module"]]


def is_refused(module, name):
    """Return whether an import is refused with a reason."""
    return bool(finder.refusal(f"{module}.{name}" if name else module))


def resolves(module, name):
    """Return whether `from module import name` works, also where the name is the module itself."""
    if module.endswith(f".{name}"):
        module, name = module.rpartition(".")[::2]
    try:
        exec(f"from {module} import {name}" if name else f"import {module}", {})
    except ModuleNotFoundError as exc:
        # An object of a provider that is not installed.
        return finder.is_provider(exc.name) and exc.name != module
    except ImportError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::asynsched.errors.MovedNameWarning")
@pytest.mark.parametrize("table", TABLES)
def test_every_imported_name_is_served_or_refused(table):
    missing = {(module, name) for module, name in imports_of(table) if not resolves(module, name)}
    assert {f"{module}.{name}" for module, name in missing if not is_refused(module, name)} == set()


def test_each_refusal_is_of_something_that_is_not_served():
    for refused in names.REFUSED:
        module, _, name = refused.rpartition(".")
        assert not resolves(module, name), refused
        with pytest.raises(ImportError):
            importlib.import_module(refused)
