"""Schedulers of a database, and the audit of what people and programs did."""
