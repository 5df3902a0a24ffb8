"""Decides the next steps of the active runs, in memory: events in, one batch of changes out. No I/O, no clock."""
