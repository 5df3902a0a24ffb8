"""Results to map over: those that `map()`, `zip()` and `concat()` of a task's result return, and their values in a try.

Source: Apache Airflow's `LazyXComSequence`, and its classes behind `map()`, `zip()` and `concat()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice

from asynsched.authoring.supervisor import ask
from asynsched.authoring.xcom import read_xcom
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY, ResultArg
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context

NO_FILL = object()
"""The fill value of a `zip` without one: None may be a fill value."""


class _ResultForm(ResultArg, ABC):
    """Results made from other results."""

    method = ""

    def __init__(self, sources: Sequence[Any]) -> None:
        for source in sources:
            if not isinstance(source, ResultArg):
                raise TypeError(f"{self.method}() takes results of tasks, not {type(source).__name__}: {source!r}")
        self.sources: Sequence[ResultArg] = sources
        refuse_other_keys(self.iter_references(), f"{self.method}()")

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        for source in self.sources:
            yield from source.iter_references()

    def resolve(self, context: Context) -> Any:
        """Return the values. Raises TypeError if a task returned neither a list nor a dict."""
        values = [source.resolve(context) for source in self.sources]
        for source, value in zip(self.sources, values, strict=True):
            if not is_mappable(value):
                raise TypeError(f"{self.method}() needs a list or a dict; {source!r} is {type(value).__name__}")
        return self.sequence(values)

    @abstractmethod
    def sequence(self, values: list[Any]) -> Any:
        """Return the sequence for the values of the sources."""

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self!r} is known only when its tasks have run: it cannot be iterated here")

    def __repr__(self) -> str:
        first, *others = self.sources
        return f"{first!r}.{self.method}({', '.join(map(repr, others))})"


class TransformedArg(_ResultForm):
    """Results with a function applied to each value."""

    method = "map"

    def __init__(self, source: ResultArg, function: Callable[[Any], Any]) -> None:
        if hasattr(function, "operator_class") or not callable(function):
            raise TypeError(f"map() takes a plain function, not {type(function).__name__}: {function!r}")
        self.function = function
        super().__init__([source])

    def sequence(self, values: list[Any]) -> Any:
        return TransformedSequence(values[0], self.function)

    def __repr__(self) -> str:
        return f"{self.sources[0]!r}.map({getattr(self.function, '__name__', 'function')})"


class ZippedArg(_ResultForm):
    """Results side by side."""

    method = "zip"

    def __init__(self, sources: Sequence[ResultArg], *, fillvalue: Any = NO_FILL) -> None:
        self.fillvalue = fillvalue
        self.is_filled = fillvalue is not NO_FILL
        super().__init__(sources)

    def sequence(self, values: list[Any]) -> Any:
        return ZippedSequence(values, self.fillvalue)


class ConcatenatedArg(_ResultForm):
    """Results one after the other."""

    method = "concat"

    def sequence(self, values: list[Any]) -> Any:
        return ConcatenatedSequence(values)


def refuse_other_keys(found: Iterator[tuple[BaseOperator, str]], what: str) -> None:
    """Raise DagError for an XCom that is not a return value: the scheduler does not know how many values it has."""
    for operator, key in found:
        if key != XCOM_RETURN_KEY:
            raise DagError(
                f"{what} of the XCom {key!r} of task {operator.task_id!r}: only a return value can be mapped over"
            )


class MappableSequence(Sequence["Any"]):
    """A sequence that equals the list of its values, and is that list in JSON."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, tuple, MappableSequence)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.at(place) for place in range(*index.indices(len(self)))]
        return self.at(index + len(self) if index < 0 else index)

    @abstractmethod
    def at(self, index: int) -> Any:
        """Return the value at an index from 0. Raises IndexError."""

    def __repr__(self) -> str:
        return repr(list(self))


class LazyXComSequence(MappableSequence):
    """The values that the instances of a task pushed, by map index; an instance that pushed nothing has none.

    A value is requested from the scheduler when it is read; iterating requests as many as one answer holds.

    Args:
        map_indexes: First and one past the last map index; None for all.
    """

    def __init__(self, task_id: str, key: str, map_indexes: tuple[int, int] | None = None) -> None:
        self._key = key
        self._of = {"task_id": task_id, "key": key, "map_indexes": None if map_indexes is None else list(map_indexes)}
        self._length: int | None = None

    def __len__(self) -> int:
        if self._length is None:
            self._length = ask("xcom_count", **self._of)
        return self._length

    def at(self, index: int) -> Any:
        found = ask("xcom_values", **self._of, offset=index, limit=1) if index >= 0 else ()
        if not found:
            raise IndexError(f"the task {self._of['task_id']!r} has no result number {index}")
        return read_xcom(found[0], self._key)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return list(islice(self._from(start), stop - start))[::step] if step > 0 else list(self)[index]
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        return self._from(0)

    def _from(self, offset: int) -> Iterator[Any]:
        while found := ask("xcom_values", **self._of, offset=offset, limit=None):
            yield from (read_xcom(stored, self._key) for stored in found)
            offset += len(found)


class TransformedSequence(MappableSequence):
    """The values of a sequence, or the items of a dict, with a function applied to each: the values of `map()`."""

    def __init__(self, values: Any, function: Callable[[Any], Any]) -> None:
        self._values = values
        self._function = function

    def __len__(self) -> int:
        return len(self._values)

    def at(self, index: int) -> Any:
        return self._function(element(self._values, index))


class ZippedSequence(MappableSequence):
    """Tuples of values side by side: the values of `zip()`."""

    def __init__(self, parts: Sequence[Any], fill: Any = NO_FILL) -> None:
        self._parts = parts
        self._fill = fill

    def __len__(self) -> int:
        lengths = [len(part) for part in self._parts]
        return min(lengths) if self._fill is NO_FILL else max(lengths)

    def at(self, index: int) -> Any:
        if index >= len(self):
            raise _no_value(index)
        return tuple(element(part, index) if index < len(part) else self._fill for part in self._parts)


class ConcatenatedSequence(MappableSequence):
    """Values one after the other: the values of `concat()`. A dict contributes its keys, as in Airflow."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def __iter__(self) -> Iterator[Any]:
        for part in self._parts:
            yield from part

    def at(self, index: int) -> Any:
        place = index
        for part in self._parts:
            if place < len(part):
                return next(islice(iter(part), place, None)) if isinstance(part, dict) else part[place]
            place -= len(part)
        raise _no_value(index)


def is_mappable(value: Any) -> bool:
    """Return whether a value can be mapped over when a task runs: a list, another sequence or a dict, but no string."""
    return isinstance(value, (Sequence, dict)) and not isinstance(value, (str, bytes, bytearray))


def element(values: Any, index: int) -> Any:
    """Return the value at an index; for a dict, the pair of key and value. Raises IndexError."""
    if not isinstance(values, dict):
        return values[index]
    if index >= len(values):
        raise _no_value(index)
    return next(islice(values.items(), index, None))


def _no_value(index: int) -> IndexError:
    return IndexError(f"there is no value number {index}")
