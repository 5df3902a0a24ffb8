"""What can be mapped over when a task runs: results of mapped tasks, fetched as they are needed, and forms of results.

Source: Apache Airflow's LazyXComSequence, and the sequences behind `map()`, `zip()` and `concat()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from asynsched.authoring.supervisor import ask
from asynsched.authoring.transport import from_transport
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY, ResultArg
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context


NO_FILL = object()
"""Stands for the fill value of a `zip` without one; None may be one."""


class MappableSequence(Sequence["Any"]):
    """A sequence that is JSON as the list of its values, and equal to it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, tuple, MappableSequence)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.at(place) for place in range(*index.indices(len(self)))]
        return self.at(index + len(self) if index < 0 else index)

    def at(self, index: int) -> Any:
        """Return the value at an index from 0. Raises IndexError."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(list(self))


class LazyXComSequence(MappableSequence):
    """What the instances of a task have pushed, in the order of their map indexes; those that pushed nothing left out.

    It asks the scheduler for a value when that is wanted, and, when all are, for as many at a time as one answer holds.

    Args:
        task_id: The task.
        key: What they pushed it under.
        map_indexes: First and one past the last map index; None for all.
    """

    def __init__(self, task_id: str, key: str, map_indexes: tuple[int, int] | None = None) -> None:
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
        return from_transport(found[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return list(islice(self._from(start), stop - start))[::step] if step > 0 else list(self)[index]
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        return self._from(0)

    def _from(self, offset: int) -> Iterator[Any]:
        while found := ask("xcom_values", **self._of, offset=offset, limit=None):
            yield from map(from_transport, found)
            offset += len(found)


class TransformedSequence(MappableSequence):
    """The values of a sequence, each as a function makes it: what `map()` gives. Of a dict, its keys and values."""

    def __init__(self, values: Any, functions: Sequence[Callable[[Any], Any]]) -> None:
        self._values = values
        self._functions = functions

    def __len__(self) -> int:
        return len(self._values)

    def at(self, index: int) -> Any:
        value = element(self._values, index)
        for function in self._functions:
            value = function(value)
        return value


class ZippedSequence(MappableSequence):
    """Values side by side, as tuples: what `zip()` gives."""

    def __init__(self, parts: Sequence[Any], fill: Any = NO_FILL) -> None:
        self._parts = parts
        self._fill = fill

    def __len__(self) -> int:
        lengths = [len(part) for part in self._parts]
        return min(lengths) if self._fill is NO_FILL else max(lengths)

    def at(self, index: int) -> Any:
        found, n_missing = [], 0
        for part in self._parts:
            try:
                found.append(element(part, index))
            except IndexError:
                if self._fill is NO_FILL:
                    raise
                found.append(self._fill)
                n_missing += 1
        if n_missing == len(self._parts):
            raise IndexError(f"there is no value number {index}")
        return tuple(found)


class ConcatenatedSequence(MappableSequence):
    """Values one after the other: what `concat()` gives. A dict gives its keys, as in Airflow."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def __iter__(self) -> Iterator[Any]:
        for part in self._parts:
            yield from part

    def at(self, index: int) -> Any:
        for part in self._parts:
            if index < len(part):
                return next(islice(iter(part), index, None)) if isinstance(part, dict) else part[index]
            index -= len(part)
        raise IndexError("there are not so many values")


def is_mappable(value: Any) -> bool:
    """Return whether a value can be mapped over when the task runs: a list, another sequence or a dict, no text."""
    return isinstance(value, (Sequence, dict)) and not isinstance(value, (str, bytes, bytearray))


def element(values: Any, index: int) -> Any:
    """Return the value at an index; of a dict the pair of its key and value. Raises IndexError."""
    if not isinstance(values, dict):
        return values[index]
    if index >= len(values):
        raise IndexError(f"there is no value number {index}")
    return next(islice(values.items(), index, None))


class _ResultForm(ResultArg):
    """Results, made of other ones."""

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
        """Return the values. Raises TypeError when a task has returned no list or dict."""
        values = [source.resolve(context) for source in self.sources]
        for source, value in zip(self.sources, values, strict=True):
            if not is_mappable(value):
                raise TypeError(f"{self.method}() needs a list or a dict; {source!r} is {type(value).__name__}")
        return self.sequence(values)

    def sequence(self, values: list[Any]) -> Any:
        """Return what is made of the values of the sources."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self!r} is known only when its tasks have run: do not iterate")

    def __repr__(self) -> str:
        first, *others = self.sources
        return f"{first!r}.{self.method}({', '.join(map(repr, others))})"


class TransformedArg(_ResultForm):
    """Results, each as functions make it."""

    method = "map"

    def __init__(self, source: ResultArg, functions: Sequence[Callable[[Any], Any]]) -> None:
        for function in functions:
            if hasattr(function, "operator_class") or not callable(function):
                raise TypeError(f"map() takes a plain function, not {type(function).__name__}: {function!r}")
        self.functions = functions
        super().__init__([source])

    def sequence(self, values: list[Any]) -> Any:
        return TransformedSequence(values[0], self.functions)

    def __repr__(self) -> str:
        names = (getattr(function, "__name__", "function") for function in self.functions)
        return repr(self.sources[0]) + "".join(f".map({name})" for name in names)


class ZippedArg(_ResultForm):
    """Results side by side."""

    method = "zip"

    def __init__(self, sources: Sequence[ResultArg], *, fillvalue: Any = NO_FILL) -> None:
        self.fillvalue = fillvalue
        super().__init__(sources)

    @property
    def is_filled(self) -> bool:
        """Whether what is missing of the shorter ones is filled up."""
        return self.fillvalue is not NO_FILL

    def sequence(self, values: list[Any]) -> Any:
        return ZippedSequence(values, self.fillvalue)


class ConcatenatedArg(_ResultForm):
    """Results one after the other."""

    method = "concat"

    def sequence(self, values: list[Any]) -> Any:
        return ConcatenatedSequence(values)


def refuse_other_keys(found: Iterator[tuple[BaseOperator, str]], what: str) -> None:
    """Raise DagError for XComs that are not what a task returned: nobody counts how many values those have."""
    for operator, key in found:
        if key != XCOM_RETURN_KEY:
            raise DagError(
                f"{what} of the XCom {key!r} of task {operator.task_id!r}: only what a task returns can be mapped over"
            )
