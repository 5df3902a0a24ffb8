"""The worker: runs tries on a machine without a scheduler, for an executor that an engine carries tickets for.

`agent.py` claims and supervises the tries of its home, whose processes the home's keeper starts. `schedulers.py` speaks
with the schedulers. `tickets.py` remembers the tickets, `sources.py` keeps the code, and `logs.py` sends the logs.
docs/how-to/write-an-executor.md says how to start one.
"""
