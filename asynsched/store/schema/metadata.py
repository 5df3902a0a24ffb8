"""What all tables belong to, and the lengths and conventions that they share."""

import sqlalchemy as sa

ID_LENGTH = 250
metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


@sa.event.listens_for(metadata, "before_create")
def _make_indexes_partial(_: sa.MetaData, connection: sa.Connection, **__: object) -> None:
    """Give PostgreSQL the conditions that SQLite's indexes have.

    To name them as `postgresql_where` loads that whole dialect, also in each command that works on SQLite.
    """
    if connection.dialect.name == "postgresql":
        for index in (index for table in metadata.tables.values() for index in table.indexes):
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
