"""Parts of an answer that may be large: as many rows as one message should hold, by their number and their bytes.

A query asks for the lengths of values first, so that it reads none that is left for the next part.
"""

from collections.abc import Iterable
from itertools import accumulate, takewhile
from typing import Any

import sqlalchemy as sa

MANY_ROWS = 1000
MANY_BYTES = 1024 * 1024
"""What the values of a part have at most, unless the first one alone has more."""


def length(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return an expression for the bytes of a column, which needs not read them."""
    return sa.func.length(column, type_=sa.Integer)


def if_small(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return an expression for a column where MANY_ROWS of such values are no more than MANY_BYTES, else NULL."""
    return sa.case((length(column) <= MANY_BYTES // MANY_ROWS, column))


def n_fitting(sizes: Iterable[int]) -> int:
    """Return how many values of these sizes fit into one part, from the first on; that one always does."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= MANY_BYTES, accumulate(sizes))))
