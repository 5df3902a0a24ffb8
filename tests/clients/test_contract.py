"""The document that asynsched publishes of Airflow's API: what it says holds, and it says nothing of its own."""

import re
from importlib import resources
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from airflow_client.client import models
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from asynsched.web.airflow_api import AIRFLOW_API
from asynsched.web.app import AIRFLOW_PREFIX
from asynsched.web.openapi import document
from tests.web.test_lists import SORTED

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
EXAMPLES = 4
"""Requests for each operation: about two minutes for all."""
CHECKS = [schemathesis.checks.not_a_server_error, status_code_conformance, response_schema_conformance]
DOCUMENT = msgspec.json.decode(msgspec.json.encode(document(AIRFLOW_API, AIRFLOW_PREFIX)))
ALIASES = {"TaskAssetReference": "TaskOutletAssetReference", "DagTag": "DagTagResponse"}
"""Our names of models that are called otherwise in Airflow; it has an equal one for inlets."""
CALL = re.compile(r"    def _(\w+)_serialize\(.*?method='(\w+)',\s+resource_path='([^']+)'", re.DOTALL)
STATUS = re.compile(r"            '(\d+)': ")
CALLED = re.compile(r"    def \w+_without_preload_content\(")
PLACE = re.compile(r"method='(\w+)',\s+resource_path='([^']+)'")
NEVER = {
    ("404", "GET", path): "a list without matches is empty"
    for path in ("/assets", "/assets/aliases", "/assets/events", "/connections", "/dagStats")
}
"""Statuses that Airflow documents and asynsched never answers."""
OWN = {
    "400": "a text that no database can keep, or a name that the list is not sorted by",
    "409": "the run cannot be changed like this at the moment",
    "503": "the database cannot be reached at the moment",
}
"""Statuses that asynsched answers where Airflow documents none."""
WITH_CONFLICTS = {
    ("PATCH", "/dags/{}/dagRuns/{}"), ("POST", "/dags/{}/dagRuns/{}/clear"), ("POST", "/dags/{}/clearDagRuns"),
}  # fmt: skip
PARAMETER = re.compile(r"_query_params\.append\(\('(\w+)'")
SORT_NAMES = re.compile(
    r"    def (\w+)_without_preload_content\((?:(?!\n    def ).)*?:param order_by: [^\n]*?attributes: `([^`]+)`",
    re.DOTALL,
)
ARGUMENT = re.compile(r"{[^}]*}")


def test_requests_made_from_the_document_are_answered_as_it_says(served):
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    bounded = settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    failures = {}
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {served.token}"
        for found in schema.get_all_operations():
            operation = found.ok()

            @bounded
            @given(case=operation.as_strategy())
            def check(case):
                case.call_and_validate(base_url=served.url, session=session, checks=CHECKS)

            try:
                check()
            except Exception as exc:  # noqa: BLE001 - of any check
                failures[operation.label] = str(exc)
    assert not failures, "\n\n".join(f"{label}: {told}" for label, told in failures.items())


def operations_of_client() -> dict[tuple[str, str], str]:
    """Return the code of each call of Airflow's client, by its method and path."""
    found = {}
    for file in resources.files("airflow_client.client.api").iterdir():
        if file.name.endswith("_api.py"):
            parts = re.split(r"(?=    def _\w+_serialize\()", file.read_text())
            for part in parts[1:]:
                if call := CALL.search(part):
                    found[call[2], ARGUMENT.sub("{}", call[3])] = part
    return found


def statuses_of_client() -> dict[tuple[str, str], set[str]]:
    """Return the statuses that Airflow documents for each call, by its method and path."""
    found = {}
    for file in resources.files("airflow_client.client.api").iterdir():
        parts = CALLED.split(file.read_text())[1:] if file.name.endswith("_api.py") else ()
        for part in parts:
            of_call, _, rest = part.partition("_serialize(\n        self,")
            call = PLACE.search(rest)
            assert call is not None
            found[call[1], ARGUMENT.sub("{}", call[2])] = set(STATUS.findall(of_call))
    return found


def test_the_parameters_are_airflow_s_and_none_is_ignored():
    known, strange = operations_of_client(), []
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            names = set(PARAMETER.findall(known[method.upper(), ARGUMENT.sub("{}", path)]))
            ours = {one["name"] for one in operation["parameters"] if one["in"] == "query"}
            strange += [f"{method} {path}: {name}" for name in sorted(ours ^ names)]
    assert strange == []


def test_the_statuses_are_airflow_s_but_for_named_ones():
    known, strange = statuses_of_client(), []
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            call = (method.upper(), ARGUMENT.sub("{}", path.removeprefix(AIRFLOW_PREFIX)))
            ours, theirs = set(operation["responses"]), known[call[0], ARGUMENT.sub("{}", path)]
            never = {status for status, *of in NEVER if tuple(of) == call}
            own = OWN.keys() - (set() if call in WITH_CONFLICTS else {"409"})
            strange += [f"{method} {path}: no {status}" for status in sorted(theirs - ours - never)]
            strange += [f"{method} {path}: {status}" for status in sorted((ours - theirs - own) | (ours & never))]
    assert strange == []


def test_the_names_that_sort_lists_are_airflow_s():
    documented = {}
    for file in resources.files("airflow_client.client.api").iterdir():
        documented |= dict(SORT_NAMES.findall(file.read_text()) if file.name.endswith("_api.py") else ())
    assert {name: set(names.split()) for name, (_, names) in SORTED.items()} == {
        name: set(names.split(", ")) for name, names in documented.items()
    }


def test_every_field_is_one_of_airflow_s():
    strange = []
    for name, schema in DOCUMENT["components"]["schemas"].items():
        model: Any = getattr(models, ALIASES.get(name, name.replace("_", "")))
        known = {field.alias or name for name, field in getattr(model, "model_fields", {}).items()}
        strange += [f"{name}.{field}" for field in schema.get("properties", {}) if field not in known]
    assert strange == []
