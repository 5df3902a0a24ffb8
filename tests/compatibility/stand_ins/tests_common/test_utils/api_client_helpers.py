"""Requests to Airflow's REST API; asynsched has none."""

from typing import Any, NoReturn


def create_airflow_connection(*_: Any, **__: Any) -> NoReturn:
    """Refuse: this needs a REST API."""
    raise NotImplementedError("asynsched has no REST API to create a connection with")


delete_airflow_connection = make_authenticated_rest_api_request = create_airflow_connection
