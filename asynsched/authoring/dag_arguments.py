"""The arguments of a DAG, checked and converted."""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.identifiers import MAX_TAG_LENGTH, check_key
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.argument_types import ArgumentTypes
from asynsched.authoring.params import ParamsDict
from asynsched.authoring.timezone import default_timezone, parse
from asynsched.authoring.unknown_arguments import RENAMED_OF_DAGS, explained
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any, Literal

    from asynsched.authoring.deadline import DeadlineAlert


class DagArguments:
    """The part of DAG that holds what it was told."""

    dag_id: str
    fileloc: str

    def __init__(
        self,
        dag_id: str,
        *,
        description: str | None = None,
        schedule: Any = None,
        start_date: dt.datetime | None = None,
        end_date: dt.datetime | None = None,
        template_searchpath: str | Iterable[str] | None = None,
        template_undefined: Any = None,
        user_defined_macros: dict[str, Any] | None = None,
        user_defined_filters: dict[str, Any] | None = None,
        default_args: dict[str, Any] | None = None,
        max_active_tasks: int | None = None,
        max_active_runs: int | None = None,
        max_consecutive_failed_dag_runs: int | None = None,
        dagrun_timeout: dt.timedelta | float | None = None,
        deadline: Any = None,
        catchup: bool | Literal["latest"] = False,
        on_success_callback: Any = None,
        on_failure_callback: Any = None,
        doc_md: str | None = None,
        params: Mapping[str, Any] | None = None,
        access_control: dict[str, Any] | None = None,
        is_paused_upon_creation: bool | None = None,
        jinja_environment_kwargs: dict[str, Any] | None = None,
        render_template_as_native_obj: bool = False,
        tags: Collection[str] | None = None,
        owner_links: dict[str, str] | None = None,
        auto_register: bool = True,
        fail_fast: bool = False,
        dag_display_name: str | None = None,
        disable_bundle_versioning: bool = False,
        **unknown: Any,
    ) -> None:
        given = dict(locals())
        self.dag_id = check_key("dag_id", dag_id)
        who = self._who
        if unknown:
            raise _unknown_arguments(who, unknown)
        _TYPES.check(who, given)
        self.description = description
        self.dag_display_name = dag_display_name or self.dag_id
        self.default_args = dict(default_args or {})
        self.timezone = _zone_of(start_date or self.default_args.get("start_date"))
        self.start_date = arguments.date(who, "start_date", start_date, self.timezone)
        self.start_date = self.start_date or self._default_date("start_date")
        self.end_date = arguments.date(who, "end_date", end_date, self.timezone)
        self.schedule = schedule
        self.catchup = _catchup(who, catchup)
        self.max_active_tasks = _limit(who, "max_active_tasks", max_active_tasks)
        self.max_active_runs = _limit(who, "max_active_runs", max_active_runs)
        self.max_consecutive_failed_dag_runs = _limit(
            who, "max_consecutive_failed_dag_runs", max_consecutive_failed_dag_runs
        )
        self.dagrun_timeout = arguments.positive_duration(who, "dagrun_timeout", dagrun_timeout)
        self.on_success_callback = arguments.callbacks(who, "on_success_callback", on_success_callback)
        self.on_failure_callback = arguments.callbacks(who, "on_failure_callback", on_failure_callback)
        self.doc_md = self._load_doc(doc_md)
        self.params = ParamsDict(params if params is not None else self.default_args.get("params"), owner=who)
        self.is_paused_upon_creation = is_paused_upon_creation
        self.tags = _tags(who, tags)
        self.auto_register = bool(auto_register)
        self.fail_fast = bool(fail_fast)
        self.template_searchpath = arguments.as_list(template_searchpath)
        self.template_undefined = template_undefined
        self.user_defined_macros = user_defined_macros or {}
        self.user_defined_filters = user_defined_filters or {}
        self.jinja_environment_kwargs = jinja_environment_kwargs or {}
        self.render_template_as_native_obj = bool(render_template_as_native_obj)
        self.owner_links = owner_links or {}
        self.access_control = access_control
        self.deadline = [] if deadline is None else _deadlines(who, deadline)
        self.disable_bundle_versioning = disable_bundle_versioning

    @property
    def _who(self) -> str:
        return f"DAG {self.dag_id!r}"

    def _default_date(self, name: str) -> dt.datetime | None:
        return arguments.date(self._who, f"default_args[{name!r}]", self.default_args.get(name), self.timezone)

    def _load_doc(self, doc_md: str | None) -> str | None:
        """Return the text, or the content of the file that a text ending with `.md` names."""
        if doc_md is None or not doc_md.endswith(".md") or "\n" in doc_md:
            return doc_md
        from pathlib import Path

        path = Path(self.fileloc).parent / doc_md
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise DagError(f"{self._who}: doc_md names the file {str(path)!r}, which cannot be read: {exc}") from exc


_TYPES = ArgumentTypes(DagArguments.__init__)


def _catchup(who: str, value: Any) -> bool | Literal["latest"]:
    if value == "latest":
        return "latest"
    if not isinstance(value, bool):
        raise DagError(f"{who}: catchup must be True, False or 'latest', not {value!r:.100}")
    return value


def _deadlines(who: str, given: Any) -> list[DeadlineAlert]:
    from asynsched.authoring.deadline import deadline_alerts

    return deadline_alerts(who, given)


def _unknown_arguments(who: str, names: Iterable[str]) -> TypeError:
    code = DagArguments.__init__.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return TypeError(f"{who}: unknown arguments: {explained(names, known, RENAMED_OF_DAGS)}")


def _zone_of(start_date: Any) -> dt.tzinfo:
    """Return the zone of an aware start date, else the default zone."""
    if isinstance(start_date, str):
        try:
            start_date = parse(start_date)
        except ValueError:
            return default_timezone()
    return getattr(start_date, "tzinfo", None) or default_timezone()


def _limit(who: str, name: str, value: Any) -> int | None:
    return None if value is None else arguments.whole_number(who, name, value, at_least=0)


def _tags(who: str, tags: Any) -> set[str]:
    if isinstance(tags, str):
        raise DagError(f"{who}: tags must be a list of texts, not the text {tags!r}")
    for tag in tags or ():
        arguments.text(who, "a tag", tag, max_length=MAX_TAG_LENGTH)
    return set(tags or ())
