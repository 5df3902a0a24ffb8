"""Every module of the providers can be imported, or there is a reason why not."""

import json
import subprocess
from fnmatch import fnmatchcase

import pytest

pytestmark = pytest.mark.timeout(900)

IMPORTS = """
import importlib, json, warnings
from importlib.metadata import files
from asynsched.airflow.exceptions import AirflowOptionalProviderFeatureException
from asynsched.airflow.finder import is_installed, is_provider, serve_airflow
from asynsched.authoring.providers import installed_providers

warnings.simplefilter("ignore")
serve_airflow("ours")
found = {}
for provider in installed_providers():
    for path in map(str, files(provider.distribution)):
        if path.startswith("airflow/providers/") and path.endswith(".py"):
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            try:
                importlib.import_module(module)
                found[module] = ""
            except AirflowOptionalProviderFeatureException as exc:
                found[module] = f"optional: {exc}"
            except ImportError as exc:
                if exc.name and is_provider(exc.name) and not is_installed(exc.name):
                    continue
                found[module] = f"{exc.name}: {exc}"
print(json.dumps(found))
"""
NOT_HERE = {
    "amazon.aws.auth_manager.*": "a part of Airflow's web server",
    "amazon.aws.bundles.*": "reads DAG files for Airflow's dag processor",
    "amazon.aws.executors.*": "executors of Airflow's",
    "amazon.aws.log.*_task_handler": "handlers of Airflow's logs",
    "cncf.kubernetes.executors.*": "an executor of Airflow's",
    "*.cli.*": "commands of Airflow's",
    "common.sql.datafusion.*": "needs datafusion, which the provider does not require",
    "amazon.aws.transfers.mongo_to_s3": "needs the driver of MongoDB, which the provider does not require",
}
"""Patterns of modules, below `airflow.providers`, that cannot be imported, and why."""


def test_all_modules_of_providers_can_be_imported_or_there_is_a_reason(python):
    done = subprocess.run([python, "-P", "-c", IMPORTS], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 300
    failed = {
        module.removeprefix("airflow.providers."): error
        for module, error in found.items()
        if error and not error.startswith("optional: ")
    }
    unexpected = {
        module: error
        for module, error in failed.items()
        if not any(fnmatchcase(module, pattern) for pattern in NOT_HERE)
    }
    assert unexpected == {}
    stale = {pattern for pattern in NOT_HERE if not any(fnmatchcase(module, pattern) for module in failed)}
    assert stale == set()
