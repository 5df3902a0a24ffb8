"""What is known of how many instances a mapped task has: the tasks on whose results it depends."""

from collections.abc import Iterator

from asynsched.serialization.schema import MapLength, MapLiteral, MapResult


def results_in(length: MapLength) -> Iterator[str]:
    """Yield the tasks whose results are mapped over."""
    if isinstance(length, MapResult):
        yield length.task_id
    elif not isinstance(length, MapLiteral):
        for part in length.parts:
            yield from results_in(part)
