"""Dynamic task mapping: what tasks and task groups are mapped over."""
