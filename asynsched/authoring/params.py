"""Params: the inputs of a run, each with a default and a JSON schema."""

from __future__ import annotations

from _collections_abc import (  # without `collections`, which is not worth its import to every DAG file
    Mapping,
    MutableMapping,
)

from asynsched.authoring.exceptions import ParamValidationError
from asynsched.authoring.json_values import with_text_keys
from asynsched.authoring.xcom_arg import ResolveMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.mapping import MappedOperator
    from asynsched.authoring.operators.base import BaseOperator
    from asynsched.authoring.running.context import Context


class NotSet:
    """The value of a param without one: None may be a value."""

    def __repr__(self) -> str:
        return "<not set>"


NOTSET = NotSet()


class Param:
    """A param: its default, and the JSON schema for its values.

    Args:
        default: The value if the run's conf has none; without a default, the conf must have one.
        description: A description for people.
        schema: The JSON schema. Without it, the other keyword arguments form the schema, as in
            `type="integer", minimum=1`; keys that are not strings, as in `values_display={1: "one"}`, become strings.
    """

    def __init__(self, default: Any = NOTSET, description: str | None = None, **kwargs: Any) -> None:
        self.value = default
        self.description = description
        self.schema: dict[str, Any] = with_text_keys(kwargs.pop("schema", kwargs))

    @property
    def has_value(self) -> bool:
        """Whether there is a default other than None."""
        return self.value is not NOTSET and self.value is not None

    def resolve(self, value: Any = NOTSET, suppress_exception: bool = False) -> Any:
        """Return `value`, or else the default, if it fits the schema.

        Raises:
            ParamValidationError: It does not fit, or there is neither. With `suppress_exception`, return None instead.
        """
        final = self.value if value is NOTSET else value
        try:
            self._check(final)
        except ParamValidationError:
            if suppress_exception:
                return None
            raise
        return final

    def _check(self, value: Any) -> None:
        if value is NOTSET:
            raise ParamValidationError("no value was given, and it has no default")
        if not self.schema:
            return
        from asynsched.authoring.json_schemas import check_value, limited_time  # loads jsonschema

        with limited_time():
            self.check_schema()
            check_value(self.schema, value)

    def check_schema(self) -> None:
        """Raise ParamValidationError, naming the invalid part, unless the schema is a JSON schema."""
        if self.schema:
            from asynsched.authoring.json_schemas import check_schema

            check_schema(self.schema)

    def __repr__(self) -> str:
        return f"Param({self.value!r})"


class ParamsDict(MutableMapping["str", "Any"]):
    """Params by name; reading one returns its value, as in a dict."""

    def __init__(self, params: Mapping[str, Any] | None = None, *, owner: str = "params") -> None:
        self._owner = owner
        self._params: dict[str, Param] = {}
        if params is not None:
            if not hasattr(params, "items"):
                raise ParamValidationError(f"{owner}: params must be a dict, not {type(params).__name__}")
            for name in params:
                self[name] = params.get_param(name) if isinstance(params, ParamsDict) else params[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise ParamValidationError(f"{self._owner}: the name of a param must be a string, not {name!r}")
        self._params[name] = value if isinstance(value, Param) else Param(value)

    def __getitem__(self, name: str) -> Any:
        return self._naming(name, self._params[name].resolve)

    def get_param(self, name: str) -> Param:
        """Return the param itself. Raises KeyError."""
        return self._params[name]

    def params(self) -> Iterable[tuple[str, Param]]:
        """Return the names and params in order."""
        return self._params.items()

    def update(self, other: ParamsDict | Mapping[str, Any]) -> None:  # type: ignore[override] # no pairs
        """Take over params, or the values of a dict; an existing param keeps its schema."""
        for name in other:
            if isinstance(other, ParamsDict):
                self._params[name] = other.get_param(name)
            elif name in self._params and not isinstance(other[name], Param):
                known = self._params[name]
                self._params[name] = Param(other[name], known.description, schema=known.schema)
            else:
                self[name] = other[name]

    def validate(self) -> dict[str, Any]:
        """Return all values. Raises ParamValidationError naming the first param without a valid value."""
        return dict(self.items())

    def check_schemas(self) -> None:
        """Raise ParamValidationError, naming the param, if a schema is invalid.

        A default that does not fit its schema passes: it means that the run's conf must have a value.
        """
        for name, param in self._params.items():
            self._naming(name, param.check_schema)

    def _naming(self, name: str, check: Callable[[], Any]) -> Any:
        """Return the result of `check`; its error is raised again with the param's name."""
        try:
            return check()
        except ParamValidationError as exc:
            raise ParamValidationError(f"{self._owner}: param {name!r}: {exc}") from None

    def dump(self) -> dict[str, Any]:
        """Return all values; None for each param without a valid one."""
        return {name: param.resolve(suppress_exception=True) for name, param in self._params.items()}

    def __delitem__(self, name: str) -> None:
        del self._params[name]

    def __contains__(self, name: object) -> bool:
        return name in self._params

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)

    def __repr__(self) -> str:
        return repr(self.dump())


NO_PARAMS = ParamsDict()


class DagParam(ResolveMixin):
    """A reference to a DAG's param, to be passed to tasks: the arguments of a `@dag` function are such references."""

    def __init__(self, current_dag: DAG, name: str, default: Any = NOTSET) -> None:
        if default is not NOTSET:
            current_dag.params[name] = default
        self.current_dag = current_dag
        self.name = name

    def resolve(self, context: Context) -> Any:
        """Return the run's value, from its conf or the default. Raises ParamValidationError if there is neither."""
        for values in (context["dag_run"].conf, context["params"]):
            if values and self.name in values:
                return values[self.name]
        raise ParamValidationError(f"DAG {self.current_dag.dag_id!r}: param {self.name!r} has no value")


def params_of_run(task: BaseOperator | MappedOperator) -> ParamsDict:
    """Return the params of a task to which a run gives values: none of a task that asks people for them."""
    found: ParamsDict = NO_PARAMS if task.params_are_asked else task.params
    return found


def resolve_params(dag: ParamsDict, task: ParamsDict, conf: Mapping[str, Any] | None, *, owner: str) -> dict[str, Any]:
    """Return the values of a run's params: the run's conf overrides the task's params, and these the DAG's.

    Raises ParamValidationError if a value does not fit its schema, or one is missing.
    """
    if not (dag or task or conf):
        return {}
    merged = ParamsDict(owner=owner)
    merged.update(dag)
    merged.update(task)
    merged.update(conf or {})
    return merged.validate()
