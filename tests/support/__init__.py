"""Shared by several tests: real schedulers as processes, a virtual clock, a scripted executor, a PostgreSQL server."""
