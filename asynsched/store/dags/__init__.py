"""Stored DAGs, their versions and sources, and the files that they come from."""
