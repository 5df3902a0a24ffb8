"""The names that official providers and public DAG files import: each is served, or refused with a reason.

Source: import statements of 34 official providers and of 634 public DAG files, November 2026; the public names of
Airflow's task SDK and of its standard provider.
"""

import importlib
import json
from pathlib import Path

import pytest

from asynsched.airflow import finder, names
from tests.unit.airflow.test_names import airflow  # noqa: F401 - a fixture

FOLDER = Path(__file__).parent
TABLES = ("provider_imports", "dag_file_imports", "public_names")


def imports_of(table):
    """Return the imports of a table, as (module, name); the name is empty for the module itself."""
    found = json.loads((FOLDER / f"{table}.json").read_text())["names"]
    if isinstance(found, dict):
        return [(module, name) for module, names_of in found.items() for name in names_of.split()]
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


@pytest.mark.filterwarnings("ignore::asynsched.errors.MovedNameWarning", "ignore:.* can be imported, but its use")
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


def test_an_old_module_of_contrib_is_refused_with_what_replaces_it():
    modules = {
        f"{module}.{name}" if module in names.EMPTY else module
        for module, name in imports_of("dag_file_imports")
        if module.startswith(f"{names.CONTRIB}.")
    }
    assert {module for module in modules if "airflow.providers." not in finder.refusal(module)} == set()
    with pytest.raises(
        ImportError, match=r"use airflow\.providers\.amazon\.aws\.hooks\.base_aws\.AwsBaseHook in place of"
    ):
        importlib.import_module("airflow.contrib.hooks.aws_hook")
    with pytest.raises(ImportError, match=r"its classes are now in airflow\.providers\.google\.cloud\.operators\.dlp"):
        exec("from airflow.contrib.operators import gcp_dlp_operator")
    with pytest.raises(ImportError, match="moved its contents into provider packages"):
        importlib.import_module("airflow.contrib.hooks.mine")
