"""`@asset`: an asset, and the DAG with the task that updates it, made from one function.

Source: Apache Airflow's `airflow.sdk.definitions.asset.decorators`.
"""

from __future__ import annotations

from asynsched.authoring.assets import Asset, AssetRef, BaseAsset, Combination
from asynsched.authoring.dag import DAG
from asynsched.authoring.exceptions import AsynschedNotFoundException
from asynsched.authoring.operators.python import PythonOperator, describe_outlets, finished
from asynsched.authoring.supervisor import ask_or_none
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, Unpack

    from asynsched.authoring.keywords import AssetDagKeywords
    from asynsched.authoring.running.context import Context

DAG_ARGUMENTS = frozenset({
    "access_control", "dag_display_name", "dag_id", "description", "is_paused_upon_creation", "on_failure_callback",
    "on_success_callback", "owner_links", "params", "tags",
})  # fmt: skip
"""The arguments of `DAG` that the decorators accept."""


NO_INLETS = ("self", "context", "outlet_events")
"""Parameters of the function that are no assets."""


class _AssetMainOperator(PythonOperator):
    """Calls a function that updates assets; `definition` is the single asset for the parameter `self`."""

    custom_operator_name = "@asset"

    def __init__(self, *, definition: Asset | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.definition = definition

    def execute(self, context: Context) -> Any:
        arguments = {
            name: self._argument(name, default, context) for name, default in _parameters(self.python_callable)
        }
        value = finished(self.python_callable(**arguments))
        return describe_outlets(value, context) if hasattr(value, "gi_frame") else value

    def _argument(self, name: str, default: Any, context: Context) -> Any:
        if default is not _REQUIRED:
            return default
        if name in ("context", "self"):
            return context if name == "context" else self.definition
        if name == "outlet_events":
            return context["outlet_events"]
        found = ask_or_none("asset_get", name=name)
        if found is None:
            raise AsynschedNotFoundException(f"there is no asset {name!r}")
        return Asset(found["name"], found["uri"], group=found["group_name"], extra=found["extra"])


class AssetDefinition(Asset):
    """An asset with the function that updates it, made by `@asset`."""

    def __init__(self, function: Callable[..., Any], name: str, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self.function = function
        self.__doc__ = function.__doc__


class MultiAssetDefinition(Combination):
    """Several assets with the function that updates them, made by `@asset.multi`. A schedule waits for all of them."""

    _word = "all"

    def __init__(self, function: Callable[..., Any], outlets: Collection[BaseAsset]) -> None:
        super().__init__(*outlets)
        self.function = function
        self.outlets = self.objects
        self.__doc__ = function.__doc__


class _DagMaker:
    """Makes the DAG of a decorated function."""

    def __init__(self, schedule: Any, arguments: Mapping[str, Any]) -> None:
        unknown = sorted(arguments.keys() - DAG_ARGUMENTS)
        if unknown:
            raise TypeError(f"{self._called}: unknown arguments: {', '.join(unknown)}")
        self.schedule = schedule
        self.arguments = dict(arguments)

    _called = "@asset"

    def _make_dag(self, function: Callable[..., Any], name: str, outlets: list[Any], definition: Asset | None) -> None:
        if function.__name__ != function.__qualname__:
            raise DagError(
                f"{self._called}: {function.__qualname__}() is not at the top level of its module; move it there"
            )
        required = [parameter for parameter, default in _parameters(function) if default is _REQUIRED]
        if "self" in required and definition is None:
            raise DagError(f"{self._called}: {function.__name__}() has a parameter self, but updates several assets")
        arguments = {"dag_id": name, **{key: value for key, value in self.arguments.items() if value is not None}}
        with DAG(schedule=self.schedule, **arguments):
            _AssetMainOperator(
                task_id=function.__name__,
                python_callable=function,
                definition=definition,
                inlets=[AssetRef(name=parameter) for parameter in required if parameter not in NO_INLETS],
                outlets=outlets,
            )


class asset(_DagMaker):  # noqa: N801 - Airflow's name, used as a decorator
    """Decorate a function that updates an asset: `@asset(schedule="@daily")`.

    The decorator makes a DAG with the function as its task, and returns the asset. The function's parameters are the
    names of other assets, which become inlets; `self` is the asset itself, `context` the task's context, and
    `outlet_events` the descriptions of its events.

    Args:
        schedule: When the DAG runs.
        name: The name of the asset, and the default of `dag_id`; by default the function's name.
        uri: The asset's URI; by default its name.
        watchers: Triggers whose events update the asset.
        arguments: Arguments of the DAG, such as `dag_id`, `tags`, `params` and `description`.
    """

    def __init__(
        self,
        *,
        schedule: Any,
        name: str | None = None,
        uri: Any = None,
        group: str = "asset",
        extra: Mapping[str, Any] | None = None,
        watchers: Any = None,
        **arguments: Unpack[AssetDagKeywords],
    ) -> None:
        super().__init__(schedule, arguments)
        self.name = name
        self.definition = {"uri": uri, "group": group, "extra": extra, "watchers": watchers}

    def __call__(self, function: Callable[..., Any]) -> AssetDefinition:
        """Make the asset and its DAG."""
        made = AssetDefinition(function, self.name or function.__name__, **self.definition)
        self._make_dag(function, made.name, [made], made)
        return made

    class multi(_DagMaker):  # noqa: N801 - as above
        """Decorate a function that updates several assets: `@asset.multi(outlets=[a, b], schedule="@daily")`.

        Args:
            arguments: Arguments of the DAG; `dag_id` is by default the function's name.
        """

        _called = "@asset.multi"

        def __init__(
            self, *, outlets: Collection[BaseAsset], schedule: Any, **arguments: Unpack[AssetDagKeywords]
        ) -> None:
            super().__init__(schedule, arguments)
            if not outlets:
                raise DagError("@asset.multi: outlets is empty; name the assets that the function updates")
            self.outlets = list(outlets)

        def __call__(self, function: Callable[..., Any]) -> MultiAssetDefinition:
            """Make the DAG."""
            self._make_dag(function, function.__name__, self.outlets, None)
            return MultiAssetDefinition(function, self.outlets)


_REQUIRED = object()


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return the parameters of a decorated function with their defaults. Raises TypeError for unsuitable ones."""
    import inspect

    found = []
    for parameter in inspect.signature(function).parameters.values():
        has_default = parameter.default is not inspect.Parameter.empty
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise TypeError(f"@asset: {function.__name__}() has {parameter}; name each asset that it reads")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            if not has_default:
                raise TypeError(f"@asset: {function.__name__}() has the positional-only parameter {parameter.name}")
            continue
        found.append((parameter.name, parameter.default if has_default else _REQUIRED))
    return found
