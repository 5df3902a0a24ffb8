"""What all tables belong to, and the lengths and conventions that they share."""

import sqlalchemy as sa

ID_LENGTH = 250
ONLY_WHERE = "only where"
"""What an index says of itself (`info`) when it holds a part of the rows: the condition."""
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
    """Give indexes their conditions, in the words of the database that the tables are made in.

    To name them as `sqlite_where` and `postgresql_where` loads both dialects, in each command.
    """
    for index in (index for table in metadata.tables.values() for index in table.indexes):
        if ONLY_WHERE in index.info:
            index.dialect_options[connection.dialect.name]["where"] = sa.text(index.info[ONLY_WHERE])
