"""Small parts of Airflow's standard provider."""

from __future__ import annotations

from asynsched.airflow.version import version
from asynsched.authoring.deadline import BaseDeadlineReference
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.link import BaseOperatorLink
from asynsched.authoring.providers import BUILT_IN, PREFIX
from asynsched.authoring.taskflow import task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.running.context import Context

provider_version = "1.21.0"
AIRFLOW_V_3_0_PLUS = AIRFLOW_V_3_1_PLUS = AIRFLOW_V_3_1_3_PLUS = AIRFLOW_V_3_2_PLUS = AIRFLOW_V_3_3_PLUS = True
XCOM_LOGICAL_DATE_ISO = "trigger_logical_date_iso"
XCOM_RUN_ID = "trigger_run_id"
XCOM_SKIPMIXIN_KEY, XCOM_SKIPMIXIN_FOLLOWED, XCOM_SKIPMIXIN_SKIPPED = "skipmixin_key", "followed", "skipped"

bash_task = task.bash
branch_external_python_task = task.branch_external_python
branch_task = task.branch
branch_virtualenv_task = task.branch_virtualenv
external_python_task = task.external_python
python_task = task.python
sensor_task = task.sensor
short_circuit_task = task.short_circuit
stub = task.stub
virtualenv_task = task.virtualenv


class ReferenceModels:
    """The base of users' deadline references by its older name, `airflow.models.deadline.ReferenceModels`."""

    BaseDeadlineReference = BaseDeadlineReference


def get_base_airflow_version_tuple() -> tuple[int, int, int]:
    """Return the numbers of the version of Airflow whose behaviour asynsched has."""
    major, minor, micro = map(int, version.split("."))
    return major, minor, micro


def get_provider_info() -> dict[str, Any]:
    """Return the description of the standard provider."""
    return {
        "package-name": f"{PREFIX}standard",
        "name": "Standard",
        "description": "Airflow's standard provider, as asynsched has it",
        "connection-types": [{"connection-type": name, "hook-class-name": path} for name, path in BUILT_IN.items()],
    }


class SmoothOperator(BaseOperator):
    """Logs the address of a song."""

    ui_color = "#e8f7e4"
    yt_link = "https://www.youtube.com/watch?v=4TYv2PhG89A"

    def execute(self, context: Context) -> None:
        """Log the address."""
        self.log.info("Enjoy Sade - Smooth Operator: %s", self.yt_link)


class TriggerDagRunLink(BaseOperatorLink):
    """The run that a TriggerDagRunOperator has triggered: the command that shows it."""

    name = "Triggered DAG"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        from shlex import join

        run_id = ti_key.xcom_pull(key=XCOM_RUN_ID)
        return join(["asynsched", "runs", "show", operator.trigger_dag_id, run_id]) if run_id else ""


class ExternalDagLink(BaseOperatorLink):
    """The DAG that an ExternalTaskSensor or ExternalTaskMarker names: the command that shows it."""

    name = "External DAG"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        from shlex import join

        return join(["asynsched", "dags", "show", operator.external_dag_id])
