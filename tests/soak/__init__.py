"""Months of a scheduler's life in virtual time, to see that it does not grow: `python -m tests.soak`."""
