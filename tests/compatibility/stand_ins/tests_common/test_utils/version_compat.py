"""The version of Airflow, as the files compare it."""

from airflow import __version__

_VERSION = tuple(int(part) for part in __version__.split(".")[:2])
AIRFLOW_V_3_0_PLUS = _VERSION >= (3, 0)
AIRFLOW_V_3_1_PLUS = _VERSION >= (3, 1)
AIRFLOW_V_3_2_PLUS = _VERSION >= (3, 2)
