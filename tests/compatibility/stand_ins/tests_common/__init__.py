"""Modules of Airflow's repository that the providers' system tests import, and no package has: minimal versions."""
