"""Dynamic task mapping: how many instances a task has, and which of them depend on one another.

Source: Apache Airflow's expand inputs and `get_relevant_upstream_map_indexes`.
"""

from collections.abc import Callable
from math import prod

from asynsched.serialization.schema import MapConcat, MapLength, MapLiteral, MapProduct, MapResult, MapZip

__all__ = ["MapLength", "indexes_at", "length_of", "product_of", "relevant_indexes"]


def length_of(length: MapLength, result_length: Callable[[str], int | None]) -> int | None:
    """Return how many values there are to map over; None while, or because, a result is not there.

    Args:
        length: What is mapped over.
        result_length: Gives the number of values that a task returned, None when it returned none.
    """
    if isinstance(length, MapLiteral):
        return length.length
    if isinstance(length, MapResult):
        return result_length(length.task_id)
    parts = [length_of(part, result_length) for part in length.parts]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    match length:
        case MapZip(_, is_filled):
            return max(known, default=0) if is_filled else min(known, default=0)
        case MapConcat():
            return sum(known)
        case MapProduct():
            return prod(known)


def product_of(lengths: tuple[MapLength, ...], result_length: Callable[[str], int | None]) -> int | None:
    """Return how many combinations there are of these; None when one of them is unknown."""
    return length_of(MapProduct(lengths), result_length)


def relevant_indexes(index: int, *, n_own: int, n_other: int, n_common: int) -> range:
    """Return the map indexes of another task that belong to the same instance of the mapped groups around both.

    Instances are numbered with the innermost group running fastest. The relation works both ways.

    Args:
        index: Map index of this task's instance.
        n_own: How many instances this task has.
        n_other: How many the other one has.
        n_common: How many instances their innermost common mapped group has.
    """
    return indexes_at(index * n_common // n_own, n_instances=n_other, n_common=n_common)


def indexes_at(place: int, *, n_instances: int, n_common: int) -> range:
    """Return the map indexes of a task that belong to the instance of a mapped group with the number `place`.

    Also of a task that cannot be shared out evenly: of a group that has another number of instances than before.
    """
    first, end = (-(-number * n_instances // n_common) for number in (place, place + 1))
    return range(first, end)
