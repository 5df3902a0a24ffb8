"""dag-factory: DAGs that are described in YAML."""

import pytest

from tests.compatibility.conftest import Prepared, ProviderSite
from tests.compatibility.outcomes import Expectations, expectations, observed, verdicts

pytestmark = pytest.mark.timeout(600)
ENVIRONMENT = "dag-factory"
OWN_EXAMPLES = ["example_load_airflow3_dags.py", "example_map_index_template.py", "example_object_storage.py"]
LOADS = """
    import sys
    from pathlib import Path

    # airflow DAG: the words that Airflow looks for
    from dagfactory import load_yaml_dags

    load_yaml_dags(globals_dict=globals(), config_filepath=str(Path(__file__).with_name("sales.yml")))
"""
YAML = """
    default:
      default_args:
        owner: sales
        start_date: 2026-01-01
        retries: 1

    orders:
      schedule: "@once"
      description: of the day
      tasks:
        - task_id: fetch
          decorator: airflow.sdk.task
          python_callable: sales_tasks.fetch
        - task_id: doubles
          decorator: airflow.sdk.task
          python_callable: sales_tasks.doubled
          partial: {times: 2}
          expand: {n: +fetch}
          dependencies: [fetch]
        - task_id: report
          operator: airflow.providers.standard.operators.bash.BashOperator
          bash_command: "echo sold in {{ dag.dag_id }} by {{ task.owner }}"
          task_group_name: ends
          dependencies: [doubles]
      task_groups:
        - group_name: ends
          tooltip: the last ones

    restock:
      schedule:
        - "s3://shop/orders"
      tasks:
        - task_id: nothing
          operator: airflow.providers.standard.operators.empty.EmptyOperator
"""
TASKS = """
    def fetch():
        return [1, 2, 3]


    def doubled(n, times):
        print("doubled to", n * times)
        return n * times
"""


def test_dags_of_yaml_files_have_its_tasks_groups_and_mapped_tasks_and_run(environment: Prepared, tmp_path) -> None:
    site = ProviderSite(tmp_path, python=environment.python)
    site.write("loads.py", LOADS)
    site.write("sales.yml", YAML)
    site.write("sales_tasks.py", TASKS)
    site.succeed("orders")
    shown = site.json("dags", "show", "orders")
    assert (shown["description"], sorted(shown["tags"])) == ("of the day", ["dagfactory"])
    assert site.task_states("orders", "latest") == dict.fromkeys(("fetch", "doubles", "ends.report"), "success")
    assert "sold in orders by sales" in site.log("orders", "ends.report")
    assert "a listener's" not in "".join(path.read_text() for path in site.home.glob("logs/**/*.log"))
    site.end_everything()


def test_its_own_examples_that_need_no_network_run(environment: Prepared, tmp_path) -> None:
    files = environment.tried("dag-factory", OWN_EXAMPLES, tmp_path)
    expected = expectations().get("dag-factory", Expectations())
    found = [(file.path, dag_id, verdict) for file in files for dag_id, verdict in verdicts(file, expected, observed())]
    assert [one for one in found if one[2].kind == "failure"] == []
    assert len({dag_id for _, dag_id, verdict in found if dag_id and verdict.is_good}) == 16
