"""How fast it is: `python -m tests.benchmarks` prints the tables of docs/benchmarks.md. No test; nothing here fails."""
