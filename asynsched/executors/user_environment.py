"""The environment of processes that run user code: the scheduler's, without anything that leads to its database."""

from collections.abc import Mapping

POSTGRESQL_VARIABLES = frozenset(
    {
        "PGDATABASE", "PGGSSLIB", "PGHOST", "PGKRBSRVNAME", "PGPASSFILE", "PGPASSWORD", "PGPORT", "PGSERVICE",
        "PGSERVICEFILE", "PGSSLCERT", "PGSSLCRL", "PGSSLKEY", "PGSSLMAXPROTOCOLVERSION", "PGSSLMINPROTOCOLVERSION",
        "PGSSLMODE", "PGSSLNEGOTIATION", "PGSSLROOTCERT", "PGTARGETSESSIONATTRS", "PGUSER",
    }
)  # fmt: skip
"""The variables that asyncpg reads when it connects: https://magicstack.github.io/asyncpg/current/api/index.html#connection."""


def user_environment(environment: Mapping[str, str], *, is_postgresql: bool) -> dict[str, str]:
    """Return a scheduler's environment without its own settings.

    If its database is PostgreSQL, the variables of PostgreSQL's clients are its own; otherwise they are for tasks.
    """
    hidden = POSTGRESQL_VARIABLES if is_postgresql else frozenset()
    return {
        name: value for name, value in environment.items() if not name.startswith("ASYNSCHED_") and name not in hidden
    }
