"""Triggers: the conditions that deferred tasks wait for, many on one event loop."""
