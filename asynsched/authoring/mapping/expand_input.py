"""What a task or a task group is mapped over: the arguments of `expand()` or `expand_kwargs()`.

Source: Apache Airflow's DictOfListsExpandInput, ListOfDictsExpandInput and MappedArgument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asynsched.authoring.mapping.map_position import group_values
from asynsched.authoring.mapping.mapped_sequences import element, is_mappable
from asynsched.authoring.mapping.xcom_forms import refuse_other_keys
from asynsched.authoring.running.context import CONTEXT_KEYS
from asynsched.authoring.xcom_arg import ResolveMixin, ResultArg
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context


def parameters_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of a function's parameters, and whether it takes any others (`*` or `**`)."""
    import inspect

    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind not in variadic]
    return names, len(names) < len(parameters)


def check_names(function: Callable[..., Any], method: str, given: Iterable[str]) -> None:
    """Raise TypeError for arguments that a decorated function cannot be given by `partial` or `expand`."""
    names, takes_any = parameters_of(function)
    name = getattr(function, "__name__", "function")
    for key in given:
        if key in CONTEXT_KEYS:
            raise TypeError(f"{name}.{method}(): {key!r} is given by the task's context, and cannot be set")
        if key not in names and not takes_any:
            raise TypeError(f"{name}.{method}(): the function has no argument {key!r}")


def refuse_repeated(who: str, given: Iterable[str], mapped: Iterable[str]) -> None:
    """Raise TypeError for arguments that are given twice, or are to be mapped although all instances share them."""
    repeated = sorted(set(given).intersection(mapped))
    if repeated:
        raise TypeError(f"{who}: given already, or not to be mapped over: {', '.join(repeated)}")


class ExpandInput(ResolveMixin):
    """Values to map over.

    Attributes:
        owner: Whom messages name.
    """

    owner: str

    def length(self, context: Context) -> int:
        """Return how many instances there are."""
        raise NotImplementedError

    def values_at(self, index: int, context: Context) -> tuple[dict[str, Any], set[str]]:
        """Return the arguments of one instance, and the names of those that have come from other tasks.

        Raises:
            TypeError: What is mapped over is no list or dict of what is needed.
            IndexError: There is no value for this instance.
        """
        raise NotImplementedError

    def _mapped_over(self, value: Any, name: str, context: Context) -> Any:
        """Return a value that is mapped over; what comes from tasks is asked for once a try."""
        if not isinstance(value, ResolveMixin):
            return value
        known = context["ti"].mapped_over
        if id(value) not in known:
            found = value.resolve(context)
            if not is_mappable(found):
                raise TypeError(
                    f"{self.owner} is mapped over {name}, which must be a list or a dict, but is {type(found).__name__}"
                )
            known[id(value)] = found
        return known[id(value)]


class ExpandProduct(ExpandInput):
    """Every combination of the values of each argument, the last argument running fastest: `expand(x=…, y=…)`.

    Raises:
        TypeError: There is no argument, or one that cannot be mapped over.
        DagError: One is an XCom that a task has pushed under another key than its result's.
    """

    def __init__(self, owner: str, arguments: dict[str, Any]) -> None:
        if not arguments:
            raise TypeError(f"{owner}: expand() has no arguments to map over")
        for name, value in arguments.items():
            if isinstance(value, MappedArgument):
                raise DagError(
                    f"{owner}: expand() over {value.name!r}, an argument of a mapped task group, is not supported"
                )
            is_result = isinstance(value, ResultArg)
            if not is_result and (isinstance(value, ResolveMixin) or not is_mappable(value)):
                raise TypeError(
                    f"{owner}: expand() maps {name!r} over a list, a dict or the result of a task, not over"
                    f" {type(value).__name__}: {value!r:.100}"
                )
            refuse_other_keys(_references(value), f"{owner}: expand() over {name!r}")
        self.owner = owner
        self.arguments = arguments

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        for value in self.arguments.values():
            yield from _references(value)

    def length(self, context: Context) -> int:
        count = 1
        for name, value in self.arguments.items():
            count *= len(self._mapped_over(value, name, context))
        return count

    def values_at(self, index: int, context: Context) -> tuple[dict[str, Any], set[str]]:
        chosen = {}
        first = next(iter(self.arguments))
        for name, value in reversed(self.arguments.items()):
            values = self._mapped_over(value, name, context)
            if name == first:
                place = index
            else:
                index, place = divmod(index, len(values))
            try:
                chosen[name] = element(values, place)
            except IndexError:
                raise IndexError(
                    f"{self.owner} is mapped over {name}, which has no value number {place} any more"
                ) from None
        from_results = {name for name, value in self.arguments.items() if isinstance(value, ResolveMixin)}
        return {name: chosen[name] for name in self.arguments}, from_results


class ExpandKwargs(ExpandInput):
    """One dict of arguments for each instance: `expand_kwargs(…)`.

    Raises:
        TypeError: It is neither the result of a task nor a list of dicts and such results.
        DagError: It is an XCom that a task has pushed under another key than its result's.
    """

    def __init__(self, owner: str, kwargs: Any) -> None:
        if isinstance(kwargs, Sequence) and not isinstance(kwargs, (str, bytes)):
            wrong = next((item for item in kwargs if not isinstance(item, (ResultArg, Mapping))), None)
        else:
            wrong = None if isinstance(kwargs, ResultArg) else kwargs
        if wrong is not None:
            raise TypeError(
                f"{owner}: expand_kwargs() takes a list of dicts or the result of a task, not"
                f" {type(wrong).__name__}: {wrong!r:.100}"
            )
        refuse_other_keys(_references(kwargs), f"{owner}: expand_kwargs()")
        self.owner = owner
        self.kwargs = kwargs

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        yield from _references(self.kwargs)

    def length(self, context: Context) -> int:
        return len(self._mapped_over(self.kwargs, "dicts", context))

    def values_at(self, index: int, context: Context) -> tuple[dict[str, Any], set[str]]:
        try:
            found = self._mapped_over(self.kwargs, "dicts", context)[index]
        except (IndexError, KeyError):
            raise IndexError(f"{self.owner} is mapped over dicts, of which there is no number {index}") from None
        is_result = isinstance(self.kwargs, ResolveMixin) or isinstance(found, ResolveMixin)
        if isinstance(found, ResolveMixin):
            found = found.resolve(context)
        if not isinstance(found, Mapping):
            raise TypeError(f"{self.owner}: expand_kwargs() needs a list of dicts, not of {type(found).__name__}")
        for key in found:
            if not isinstance(key, str):
                raise TypeError(f"{self.owner}: expand_kwargs() needs dicts with texts as keys, not {key!r}")
        return dict(found), set(found) if is_result else set()


class MappedArgument(ResolveMixin):
    """An argument of a mapped task group, as the function of the group is given it: known when a task runs."""

    def __init__(self, expand_input: ExpandInput, name: str) -> None:
        self.expand_input = expand_input
        self.name = name

    def iter_references(self) -> Iterator[tuple[BaseOperator, str]]:
        return self.expand_input.iter_references()

    def resolve(self, context: Context) -> Any:
        """Return the argument's value in this instance of the group."""
        values = group_values(context, self.expand_input)
        if self.name not in values:
            raise TypeError(f"{self.expand_input.owner}: instance {context['ti'].map_index} has no {self.name!r}")
        value = values[self.name]
        return value.resolve(context) if isinstance(value, ResolveMixin) else value

    def __repr__(self) -> str:
        return f"<argument {self.name!r} of {self.expand_input.owner}>"


def _references(value: Any) -> Iterator[tuple[BaseOperator, str]]:
    """Yield the tasks, with XCom keys, that a value to map over has at any depth of lists and dicts."""
    if isinstance(value, ResolveMixin):
        yield from value.iter_references()
    elif isinstance(value, (list, tuple, Mapping)):
        inside: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for item in inside:
            yield from _references(item)
