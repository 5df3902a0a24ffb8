"""Figures about a scheduler, for Prometheus or OpenTelemetry, under Airflow's names."""
