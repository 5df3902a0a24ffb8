"""The XComs of a run without a scheduler, in memory. Values pass through JSON, as they do elsewhere."""

import json
import sys
from collections import defaultdict
from collections.abc import Collection
from typing import Any

UNMAPPED = -1
"""The map_index of a task that is not mapped."""


class MemoryXComs:
    """What the task instances of one run have pushed."""

    def __init__(self) -> None:
        self._values: defaultdict[tuple[str, str], dict[int, Any]] = defaultdict(dict)

    def push(self, task_id: str, map_index: int, key: str, value: Any) -> Any:
        """Store a value, and return it as others will see it."""
        kept = json.loads(json.dumps(value, allow_nan=False))
        self._values[task_id, key][map_index] = kept
        return kept

    def pull(self, task_ids: Collection[str], key: str, map_indexes: Collection[int] | None) -> list[Any]:
        """Return [task_id, map_index, value] of each that there is, by task and index."""
        return [
            [task_id, map_index, value]
            for task_id in task_ids
            for map_index, value in sorted(self._values[task_id, key].items())
            if map_indexes is None or map_index in map_indexes
        ]

    def mapped(self, task_id: str, key: str, map_indexes: Collection[int] | None) -> list[Any]:
        """Return what the instances of a mapped task have pushed, by map index; of those from one up to another only.

        Args:
            map_indexes: The first, and one past the last; None for all.
        """
        found = sorted(self._values[task_id, key].items(), key=lambda item: item[0])
        first, end = map_indexes or (0, sys.maxsize)
        return [value for index, value in found if first <= index < end]
