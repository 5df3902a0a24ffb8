"""Benchmarks: `python -m tests.benchmarks` prints the tables of docs/benchmark-history.md. Nothing here is a test."""
