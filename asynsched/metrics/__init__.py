"""Figures for those who watch a scheduler, through Prometheus or OpenTelemetry, under Airflow's names."""
