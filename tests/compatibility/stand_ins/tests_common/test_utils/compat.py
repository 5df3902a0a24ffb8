"""Names that moved between versions of Airflow."""

from airflow.providers.standard.operators.empty import EmptyOperator

__all__ = ["EmptyOperator"]
