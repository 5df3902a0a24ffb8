"""Tries on other machines: the executor that all engines share, and the contract of an engine's adapter.

`engine.py` is the contract. `verdicts.py` decides when a try is lost or is given up. `executor.py` is the executor.
docs/decisions/0029-tries-elsewhere.md gives the reasons; docs/how-to/write-an-executor.md says how to write an adapter.
"""
