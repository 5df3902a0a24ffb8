"""Faults: real processes that are killed (`real`), and a simulation that explores more of them (`simulated`)."""
