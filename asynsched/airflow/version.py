"""The version that a file sees when it asks for Airflow's."""

version = "3.3.2"
"""The version of Airflow whose names, arguments and behaviour asynsched has."""
sdk_version = "1.3.2"
"""The version of its task SDK."""
