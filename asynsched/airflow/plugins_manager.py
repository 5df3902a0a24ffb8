"""AirflowPlugin, and the marker of listeners: modules with plugins can be imported. asynsched loads none of them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])


class AirflowPluginException(Exception):
    """A plugin is invalid."""


class AirflowPlugin:
    """Base class of plugins. Subclasses list what they add to Airflow."""

    name: str | None = None
    source: Any = None
    macros: list[Any] = []  # noqa: RUF012 - subclasses replace them
    admin_views = flask_blueprints = fastapi_apps = fastapi_root_middlewares = external_views = react_apps = macros
    menu_links = appbuilder_views = appbuilder_menu_items = global_operator_extra_links = macros
    operator_extra_links = timetables = partition_mappers = windows = deadline_references = listeners = macros
    hook_lineage_readers = priority_weight_strategies = macros

    @classmethod
    def validate(cls) -> None:
        """Raise AirflowPluginException if the plugin has no name."""
        if not cls.name:
            raise AirflowPluginException(f"the plugin {cls.__name__} has no name")

    @classmethod
    def on_load(cls, *_args: Any, **_kwargs: Any) -> None:
        """Do what the plugin needs when it is loaded. Subclasses may implement this."""


def hookimpl(function: Function | None = None, **_options: Any) -> Any:
    """Return the function unchanged: asynsched calls no listeners."""
    return function if function is not None else lambda marked: marked
