"""Rendering templates: Jinja environments, Airflow's filters, and values with templates in them.

A string without a template is not passed to Jinja, so a task without templates does not load Jinja.
"""

from __future__ import annotations

from asynsched.authoring.airflow_2 import OLD_VALUES, source_of_value, tell_of_value, value_of_context
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.running.context import Context, Deferred
from asynsched.authoring.xcom_arg import ResolveMixin
from asynsched.errors import AsynschedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any, ClassVar

    import jinja2

    from asynsched.authoring.dag import DAG


class Templater:
    """Something whose `template_fields` are rendered before use.

    A string that ends with one of `template_ext` names a file, and the file's content is the template.
    """

    template_fields: Collection[str] = ()
    template_ext: Sequence[str] = ()
    template_fields_renderers: ClassVar[Mapping[str, str]] = {}

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        """Return the Jinja environment for the templates."""
        return _environment(native=False, cache_size=0) if dag is None else dag.get_template_env()

    def prepare_template(self) -> None:
        """Hook: called before the fields are rendered."""

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Return `content` with every string in it rendered and every task's result in it resolved."""
        return Renderer(self, context, jinja_env, seen_oids).render(content)

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the attributes named by `template_fields`, in place."""
        self._do_render_template_fields(self, self.template_fields, context, jinja_env, set())

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Collection[str],
        context: Context,
        jinja_env: jinja2.Environment | None,
        seen_oids: set[int],
    ) -> None:
        """Render attributes of an object, in place.

        Airflow's operators call it for objects inside of their fields, and override it to prepare fields of their own.
        """
        Renderer(self, context, jinja_env, seen_oids).render_fields(parent, template_fields)

    def _render_nested_template_fields(
        self, value: Any, context: Context, jinja_env: jinja2.Environment | None, seen_oids: set[int]
    ) -> None:
        """Render an object inside of a field, if it has template_fields. Airflow's operators override it for others."""
        if hasattr(type(value), "template_fields") and id(value) not in seen_oids:
            seen_oids.add(id(value))
            self._do_render_template_fields(value, value.template_fields, context, jinja_env, seen_oids)


def dag_environment(dag: DAG, *, native: bool) -> jinja2.Environment:
    """Return the environment for a DAG's templates; `native` renders to Python values instead of strings."""
    import jinja2

    options = {
        "loader": jinja2.FileSystemLoader([dag.folder, *dag.template_searchpath]),
        "undefined": dag.template_undefined or jinja2.StrictUndefined,
        "extensions": ["jinja2.ext.do"],
        "cache_size": 0,
        **dag.jinja_environment_kwargs,
    }
    environment = _environment(native=native, **options)
    environment.globals.update(dag.user_defined_macros)
    environment.filters.update(dag.user_defined_filters)
    return environment


def _environment(*, native: bool, **options: Any) -> jinja2.Environment:
    from jinja2.nativetypes import NativeEnvironment
    from jinja2.runtime import Context as Variables
    from jinja2.sandbox import SandboxedEnvironment, is_internal_attribute
    from jinja2.utils import missing

    class TaskEnvironment(SandboxedEnvironment):
        """Blocks Python's internals in templates; as in Airflow, a single leading underscore is allowed."""

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            return not is_internal_attribute(obj, attr)

    class TaskVariables(Variables):
        """Resolves deferred values when a template names them."""

        def resolve_or_missing(self, key: str) -> Any:
            value = super().resolve_or_missing(key)
            if value is missing and key in OLD_VALUES and self.resolve_or_missing(source_of_value(key)) is not missing:
                tell_of_value(self.resolve_or_missing("task"), key)
                return value_of_context(self.resolve_or_missing, key)
            return value.find() if isinstance(value, Deferred) else value

    environment: jinja2.Environment = NativeEnvironment(**options) if native else TaskEnvironment(**options)
    environment.context_class = TaskVariables
    environment.filters.update(FILTERS)
    return environment


class Renderer:
    """Renders the values of an object in a context.

    Args:
        environment: The Jinja environment; by default made when it is needed.
        seen: The ids of objects that were rendered before or are being rendered.
    """

    def __init__(
        self,
        owner: Templater,
        context: Context,
        environment: jinja2.Environment | None = None,
        seen: set[int] | None = None,
    ) -> None:
        self._owner = owner
        self._context = context
        self._environment = environment
        self._seen = set() if seen is None else seen
        self._kept_as_is = {id(value) for value in getattr(owner, "kept_as_is", ())}

    def render_fields(self, parent: Any, fields: Collection[str]) -> None:
        """Render these attributes of an object, in place."""
        for field in fields:
            try:
                value = getattr(parent, field)
            except AttributeError:
                raise AsynschedException(
                    f"{parent!r}: {field!r} is in template_fields, but {type(parent).__name__} sets no such attribute"
                ) from None
            if value is not None and not (isinstance(value, str) and value == ""):
                setattr(parent, field, self._render_field(parent, field, value))

    def _render_field(self, parent: Any, field: str, value: Any) -> Any:
        try:
            if callable(value) and id(value) not in self._kept_as_is:
                return value(context=self._context, jinja_env=self._own_environment())
            return self.render(value)
        except AsynschedError:
            raise
        except Exception as exc:
            if not type(exc).__module__.startswith("jinja2"):
                raise
            raise AsynschedException(f"{parent!r}: the template in {field!r} cannot be rendered: {exc}") from exc

    def render(self, value: Any) -> Any:
        """Return a value with its strings rendered and its references resolved."""
        if id(value) in self._kept_as_is:
            return value
        if isinstance(value, str):
            return self._render_text(value)
        if isinstance(value, ResolveMixin):
            return value.resolve(self._context)
        if isinstance(value, tuple):
            items = [self.render(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, list):
            return [self.render(item) for item in value]
        if isinstance(value, dict):
            return {key: self.render(item) for key, item in value.items()}
        if isinstance(value, set):
            return {self.render(item) for item in value}
        if hasattr(type(value), "rendered_with"):
            return value.rendered_with(self._render_text)
        self._owner._render_nested_template_fields(value, self._context, self._environment, self._seen)  # noqa: SLF001
        return value

    def _own_environment(self) -> jinja2.Environment:
        if self._environment is None:
            self._environment = self._owner.get_template_env()
        return self._environment

    def _render_text(self, text: str) -> Any:
        is_path = bool(self._owner.template_ext) and text.endswith(tuple(self._owner.template_ext))
        if not is_path and self._is_literal(text):
            return text
        environment = self._own_environment()
        template = environment.get_template(text) if is_path else environment.from_string(text)
        # `Template.render` copies the context with dict(), so templates cannot change it.
        context = self._context
        if isinstance(context, Context):
            context.has_rendered = True
        return template.render(context.with_deferred() if isinstance(context, Context) else context)

    def _is_literal(self, text: str) -> bool:
        """Return whether Jinja would not change a string: it removes a newline at the end, and changes CR LF.

        To native values it changes numbers, lists and others that are written as in Python.
        """
        dag = self._context.get("dag")
        has_own_syntax = self._environment is not None or (dag is not None and dag.jinja_environment_kwargs)
        is_native = getattr(self._owner, "render_template_as_native_obj", None)
        if is_native is None:
            is_native = dag is not None and dag.render_template_as_native_obj
        return not is_native and not has_own_syntax and "{" not in text and "\r" not in text and not text.endswith("\n")


def _filter(write: Callable[[Any], str]) -> Callable[[Any], str | None]:
    return lambda moment: None if moment is None else write(moment)


FILTERS = {
    "ds": _filter(lambda moment: moment.strftime("%Y-%m-%d")),
    "ds_nodash": _filter(lambda moment: moment.strftime("%Y%m%d")),
    "ts": _filter(lambda moment: moment.isoformat()),
    "ts_nodash": _filter(lambda moment: moment.strftime("%Y%m%dT%H%M%S")),
    "ts_nodash_with_tz": _filter(lambda moment: moment.isoformat().replace("-", "").replace(":", "")),
}
"""Airflow's filters of dates and times."""
