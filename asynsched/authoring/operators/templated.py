"""Templates in the fields of a task: Airflow's methods, over `asynsched.authoring.running.templating`."""

from __future__ import annotations

from asynsched.authoring.running.templating import Renderer, plain_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any, ClassVar

    import jinja2

    from asynsched.authoring.dag import DAG
    from asynsched.authoring.running.context import Context


class Templater:
    """Something whose `template_fields` are rendered before it is used.

    A text that ends with one of `template_ext` names a file whose content is the template.
    """

    template_fields: Collection[str] = ()
    template_ext: Sequence[str] = ()
    template_fields_renderers: ClassVar[Mapping[str, str]] = {}

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        """Return the Jinja environment that templates are rendered with."""
        return plain_environment() if dag is None else dag.get_template_env()

    def prepare_template(self) -> None:
        """Hook: called before the fields are rendered."""

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Return `content` with every text in it rendered, and every task's result in it resolved."""
        return Renderer(self, context, jinja_env, seen_oids).render(content)

    def render_template_fields(self, context: Context, jinja_env: jinja2.Environment | None = None) -> None:
        """Render the fields named by `template_fields`, in place."""
        Renderer(self, context, jinja_env).render_fields(self)
