"""Airflow's names in the processes that run user code: an unmodified DAG file for Airflow runs here.

names.py     the table of what is served: module, name, and asynsched's equivalent; data only
finder.py    makes `import airflow...` find that table, and installed provider packages

The other modules hold what Airflow has and asynsched does not need itself. They are named after Airflow's.
"""
