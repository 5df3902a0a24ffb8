"""The move from Airflow: checks of its DAG files, and the import of its database."""
