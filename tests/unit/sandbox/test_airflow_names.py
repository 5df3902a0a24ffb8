"""The error of a DAG file that imports from Airflow: it offers only names that asynsched has."""

import pytest

from sandbox.parsing.explain import instead_of, missing_name


@pytest.mark.parametrize(
    ("module", "names", "said"),
    [
        ("airflow.sdk", ["DAG", "task"], "import the same names from asynsched"),
        ("airflow.sdk", ["timezone", "macros"], "import the same names from asynsched"),
        ("airflow", ["*"], "import the same names from asynsched"),
        ("airflow.utils.timezone", ["utcnow"], "import the same names from asynsched.authoring.timezone"),
        ("airflow.exceptions", ["AirflowSkipException"], "import AsynschedSkipException from asynsched"),
        ("airflow.datasets", ["Dataset", "Metadata"], "import Asset, Metadata from asynsched"),
        ("airflow.io.path", ["ObjectStoragePath"], "asynsched has no name 'ObjectStoragePath'"),
        ("airflow.models", ["DAG", "Nowhere"], "import DAG from asynsched; asynsched has no name 'Nowhere'"),
        (
            "airflow.providers.postgres.hooks.postgres", ["PostgresHook"],
            "asynsched has no name 'PostgresHook'; providers of Airflow need Airflow itself",
        ),
    ],
)  # fmt: skip
def test_an_import_from_airflow_gets_the_place_of_each_name_here(module, names, said):
    assert instead_of(module, names) == said


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Dataset", "; did you mean Asset?"),
        ("DatasetOrTimeSchedule", "; did you mean AssetOrTimeSchedule?"),
        ("AirflowException", "; did you mean AsynschedException?"),
        ("BashOperater", "; did you mean BashOperator"),
        ("days_ago", "; give start_date a date, such as datetime(2026, 1, 1)"),
    ],
)
def test_a_name_that_is_not_here_is_told_what_it_is_called_here(name, hint):
    assert missing_name(name).startswith(f"asynsched has no name {name!r}{hint}")
