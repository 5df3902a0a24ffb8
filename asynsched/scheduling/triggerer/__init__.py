"""Deferred tasks: their triggers, and the processes that these run in."""
