"""Fixtures for all tests."""

from tests.support.postgres import new_postgres_database, postgres_server, postgres_url

__all__ = ["new_postgres_database", "postgres_server", "postgres_url"]
