"""Dynamic task mapping: how many instances a task has, and which instances of two tasks belong together.

Source: Apache Airflow's expand inputs and `get_relevant_upstream_map_indexes`.
"""

from collections.abc import Callable
from math import prod

from asynsched.serialization.schema import MapConcat, MapLength, MapLiteral, MapProduct, MapResult, MapZip


def length_of(length: MapLength, result_length: Callable[[str], int | None]) -> int | None:
    """Return the number of values to map over; None if a result is missing.

    Args:
        result_length: Returns the number of values in a task's result, None if it has none.
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


def indexes_at(place: int, *, n_instances: int, n_common: int) -> range:
    """Return a task's map indexes in the instance of a mapped group with the number `place`.

    Instances are numbered with the innermost group running fastest.

    The number of instances need not divide evenly: the group may have had another size before.
    """
    first, end = (-(-number * n_instances // n_common) for number in (place, place + 1))
    return range(first, end)
