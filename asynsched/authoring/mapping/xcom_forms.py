"""Forms of results that tasks are mapped over: what `map()`, `zip()` and `concat()` of a result return."""

from __future__ import annotations

from asynsched.authoring.mapping.mapped_sequences import (
    NO_FILL,
    ConcatenatedSequence,
    TransformedSequence,
    ZippedSequence,
    is_mappable,
)
from asynsched.authoring.xcom_arg import XCOM_RETURN_KEY, ResultArg
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context


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
