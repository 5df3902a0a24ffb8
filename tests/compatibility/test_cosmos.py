"""astronomer-cosmos: the models of dbt projects as tasks, on a real PostgreSQL. Parses are confined."""

import json
import os
from pathlib import Path

import pytest

from tests.compatibility.conftest import Prepared, ProviderSite
from tests.compatibility.outcomes import Expectations, expectations, observed, verdicts
from tests.compatibility.trying import shop_database

pytestmark = pytest.mark.timeout(600)
ENVIRONMENT = "cosmos"
FILES = {
    "shop/dbt_project.yml": """
        name: shop
        version: "1.0"
        profile: shop
        models: {shop: {+materialized: table}}
    """,
    "shop/seeds/sold.csv": "item,n\napples,3\npears,4\n",
    "shop/models/totals.sql": "select sum(n) as total from {{ ref('sold') }}\n",
    "shop/models/schema.yml": """
        version: 2
        models:
          - name: totals
            columns: [{name: total, data_tests: [not_null]}]
    """,
    "uses_dbt.py": """
        from datetime import datetime
        from pathlib import Path

        from airflow.sdk import DAG, task
        from cosmos import DbtDag, DbtTaskGroup, LoadMode, ProfileConfig, ProjectConfig, RenderConfig
        from cosmos.profiles import PostgresUserPasswordProfileMapping

        mapping = PostgresUserPasswordProfileMapping(
            conn_id="example_conn", profile_args={"schema": "public"}, disable_event_tracking=True
        )
        profile = ProfileConfig(profile_name="shop", target_name="dev", profile_mapping=mapping)
        project = ProjectConfig(Path(__file__).with_name("shop"))

        # dbt itself lists the models.
        listed = DbtDag(
            dag_id="listed", schedule="@once", start_date=datetime(2026, 1, 1), project_config=project,
            profile_config=profile, operator_args={"install_deps": False}, render_config=RenderConfig(dbt_deps=False),
        )

        with DAG("grouped", schedule=None):

            @task
            def before():
                print("before")

            # cosmos reads the models' files.
            group = DbtTaskGroup(
                group_id="models", project_config=project, profile_config=profile,
                operator_args={"install_deps": False}, render_config=RenderConfig(load_method=LoadMode.CUSTOM),
            )
            before() >> group
    """,
}
OWN_EXAMPLES = [
    "cosmos_seed_dag.py",
    "example_operators.py",
    "example_tests_multiple_parents.py",
    "user_defined_profile.py",
]


def test_a_dbt_project_becomes_tasks_in_a_confined_parse_and_runs(environment: Prepared, tmp_path) -> None:
    with shop_database() as host:
        site = ProviderSite(tmp_path, python=environment.python)
        given = {name: value.replace("{postgres}", host) for name, value in environment.variables.items()}
        names = [name for name in given if not name.startswith("ASYNSCHED_")]
        path = f"{Path(environment.python).parent}{os.pathsep}{os.environ['PATH']}"
        site.env |= given | {"ASYNSCHED_PARSE__ENVIRONMENT": json.dumps(names), "PATH": path}
        # It is read by the pathspec that dbt-core has.
        site.write(".airflowignore", "shop/\nignored_*.py\n")
        site.write("ignored_dag.py", "raise RuntimeError('airflow dag')\n")
        for name, text in FILES.items():
            site.write(name, text)
        site.succeed("listed", timeout=300)
        assert site.task_states("listed", "latest") == dict.fromkeys(
            ("sold_seed", "totals.run", "totals.test"), "success"
        )
        assert "CREATE TABLE" in site.log("listed", "totals.run") or "SELECT 1" in site.log("listed", "totals.run")
        grouped = {one["task_id"] for one in site.json("dags", "show", "grouped")["tasks"]}
        assert grouped == {"before", "models.sold_seed", "models.totals_run"}
        site.end_everything()


def test_some_of_its_own_examples_parse_and_run_as_they_are(environment: Prepared, tmp_path) -> None:
    files = environment.tried("cosmos", OWN_EXAMPLES, tmp_path, runs=["example_tests_multiple_parents.py"])
    expected = expectations().get("cosmos", Expectations())
    found = {(file.path, dag_id): one for file in files for dag_id, one in verdicts(file, expected, observed())}
    assert {path for path, dag_id in found if not dag_id} == {*OWN_EXAMPLES}
    assert {key: one.why for key, one in found.items() if not one.is_good} == {}
    assert ("example_tests_multiple_parents.py", "example_multiple_parents_test") in found
