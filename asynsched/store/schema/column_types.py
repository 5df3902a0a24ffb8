"""The types of columns that the tables share."""

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Integer, LargeBinary

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970 of an aware datetime: how SQLite keeps it."""
    return (instant - EPOCH) // timedelta(microseconds=1)


class Instant(sa.TypeDecorator[datetime]):
    """An aware UTC datetime. SQLite keeps microseconds since 1970, so that rows sort and compare as numbers."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(sa.TIMESTAMP(timezone=True))
        return dialect.type_descriptor(sa.BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> object:
        if value is None or dialect.name == "postgresql":
            return value
        return microseconds(value)

    def process_result_value(self, value: object, dialect: sa.Dialect) -> datetime | None:
        if isinstance(value, int):
            return EPOCH + timedelta(microseconds=value)
        return value.astimezone(UTC) if isinstance(value, datetime) else None


BigId = sa.BigInteger().with_variant(Integer, "sqlite")
Json = LargeBinary
"""JSON as bytes: encoded and decoded by msgspec, never searched by the database."""
