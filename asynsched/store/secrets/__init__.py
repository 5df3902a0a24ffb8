"""Secrets at rest: variables, connections, and the keys that encrypt them."""
