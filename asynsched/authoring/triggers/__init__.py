"""Triggers: what a deferred task waits for, many on one event loop."""
