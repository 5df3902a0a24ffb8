"""HITLOperator and its kin: tasks that ask people, and go on with their answer.

Source: Apache Airflow's standard provider, `operators.hitl`.
"""

from __future__ import annotations

import warnings

from asynsched.authoring import defaults
from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.operators.base import BaseOperator
from asynsched.authoring.operators.branch import BaseBranchOperator, SkipMixin
from asynsched.authoring.params import NOTSET, ParamsDict
from asynsched.authoring.triggers.hitl import TaskAwaitingInput, upsert_hitl_detail

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, NoReturn, Unpack

    from asynsched.authoring.keywords import CommonKeywords, HITLKeywords
    from asynsched.authoring.running.context import Context


class HITLTriggerEventError(Exception):
    """The wait for an answer has failed."""


class HITLTimeoutError(HITLTriggerEventError):
    """Nobody has answered in time, and there are no defaults."""


class HITLRejectException(AsynschedException):
    """An ApprovalOperator with `fail_on_reject` was rejected."""


class HITLOperator(BaseOperator):
    """Asks people to choose among options, and waits for an answer without a process.

    Returns a dict of `chosen_options`, `params_input`, `responded_at` and `responded_by_user`, which is None if the
    defaults hold because the time was over.

    Args:
        subject: The question, in one line.
        options: The possible answers.
        body: More about it, in Markdown.
        defaults: The option, or the options, that hold if nobody answers within `response_timeout`.
        multiple: Whether an answer may name several options.
        params: Inputs of the answer beside the options: default values, or Params.
        notifiers: Called once the question is asked.
        assigned_users: Who may answer, dicts of `id` and `name`; None: everybody.
        response_timeout: The longest wait; then the defaults hold, or the task fails. `execution_timeout` is taken for
            it, with a warning, where it is not given.

    Raises:
        ValueError: There are no options, the defaults are not among them, or are several without `multiple`.
    """

    template_fields: Sequence[str] = ("subject", "body")
    params_are_asked = True

    def __init__(
        self,
        *,
        task_id: str,
        subject: str,
        options: list[str],
        body: str | None = None,
        defaults: str | list[str] | None = None,
        multiple: bool = False,
        params: Any = None,
        notifiers: Any = None,
        assigned_users: Any = None,
        response_timeout: dt.timedelta | None = None,
        **kwargs: Unpack[CommonKeywords],
    ) -> None:
        super().__init__(task_id=task_id, **kwargs)
        if self.execution_timeout and not response_timeout:
            warnings.warn(
                f"task {self.task_id!r}: execution_timeout is taken for response_timeout, the longest wait for an"
                " answer: pass response_timeout",
                DeprecationWarning,
                stacklevel=2,
            )
            response_timeout, self.execution_timeout = self.execution_timeout, None
        self.subject = subject
        self.body = body
        self.options = options
        self.defaults = [defaults] if isinstance(defaults, str) else defaults
        self.multiple = multiple
        self.params = ParamsDict(params, owner=f"task {self.task_id!r}")
        self.notifiers: Sequence[Callable[[Context], Any]] = [notifiers] if callable(notifiers) else notifiers or []
        self.assigned_users = [assigned_users] if isinstance(assigned_users, dict) else assigned_users
        self.response_timeout = response_timeout
        self.hitl_summary_extra: dict[str, Any] = {}
        self.validate_options()
        self.validate_params()
        self.validate_defaults()

    def validate_options(self) -> None:
        """Raise ValueError if there are no options."""
        if not self.options:
            raise ValueError(f"task {self.task_id!r}: options must not be empty")

    def validate_params(self) -> None:
        """Raise ValueError for a param with a reserved name."""
        if "_options" in self.params:
            raise ValueError(f"task {self.task_id!r}: no param may have the name '_options'")

    def validate_defaults(self) -> None:
        """Raise ValueError if the defaults are not a possible answer."""
        if self.defaults is None:
            return
        if unknown := [default for default in self.defaults if default not in self.options]:
            raise ValueError(f"task {self.task_id!r}: the defaults {unknown} are not among the options {self.options}")
        if len(self.defaults) > 1 and not self.multiple:
            raise ValueError(f"task {self.task_id!r}: several defaults need multiple=True")

    @property
    def serialized_params(self) -> dict[str, dict[str, Any]]:
        """The `value`, `description` and `schema` of each param, by name."""
        return {
            name: {
                "value": None if param.value is NOTSET else param.value,
                "description": param.description,
                "schema": param.schema,
            }
            for name, param in self.params.params()
        }

    @property
    def hitl_summary(self) -> dict[str, Any]:
        """The question, and the extra of its answer from `hitl_summary_extra`."""
        names = ("subject", "body", "options", "defaults", "multiple", "assigned_users")
        about = {name: getattr(self, name) for name in names}
        return {**about, "serialized_params": self.serialized_params or None, **self.hitl_summary_extra}

    def execute(self, context: Context) -> NoReturn:
        """Ask, call the notifiers, and wait. Raises TaskAwaitingInput."""
        upsert_hitl_detail(
            context["ti"].id, self.options, self.subject, self.body, self.defaults, self.multiple,
            self.serialized_params, self.assigned_users,
        )  # fmt: skip
        self.log.info("Waiting for an answer: %s", self.subject)
        for notifier in self.notifiers:
            notifier(context)
        raise TaskAwaitingInput(method_name="execute_complete", timeout=self.response_timeout)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the answer.

        Raises:
            HITLTimeoutError: The time was over, and there are no defaults.
            ValueError: The answer fits neither the options nor the params.
        """
        if "error" in event:
            self.hitl_summary_extra["error_type"] = event["error_type"]
            self.process_trigger_event_error(event)
        chosen, entered = event["chosen_options"], event["params_input"] or {}
        self.validate_chosen_options(chosen)
        self.validate_params_input(entered)
        user, at = event["responded_by_user"], event["responded_at"]
        self.log.info("%s chose %s", "Nobody answered: the defaults" if user is None else user["name"], chosen)
        answer = {"chosen_options": chosen, "params_input": entered}
        self.hitl_summary_extra.update(answer, responded_at=at.isoformat(), responded_by_user=user)
        return {**answer, "responded_at": at, "responded_by_user": user}

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        """Raise HITLTimeoutError or HITLTriggerEventError, with the event's error."""
        kind = HITLTimeoutError if event["error_type"] == "timeout" else HITLTriggerEventError
        raise kind(event["error"])

    def validate_chosen_options(self, chosen_options: Iterable[str]) -> None:
        """Raise ValueError for an option that the task does not offer."""
        if unknown := [option for option in chosen_options if option not in self.options]:
            raise ValueError(f"the answers {unknown} are not among the options {self.options}")

    def validate_params_input(self, params_input: Mapping[str, Any]) -> None:
        """Take over the values of an answer. Raises ValueError if they do not fit the params."""
        if params_input and set(params_input) != set(self.params):
            raise ValueError(f"the answer has values for {sorted(params_input)}, the params are {sorted(self.params)}")
        self.params.update(params_input)
        self.params.validate()

    def generate_link_to_ui(
        self,
        *,
        task_instance: Any,
        base_url: str | None = None,
        options: str | list[str] | None = None,
        params_input: Mapping[str, Any] | None = None,
    ) -> str:
        """Return an address in Airflow's form. In the page of asynsched it leads to the questions that are open.

        Args:
            task_instance: The one to be answered.
            base_url: By default the setting `web.base_url`, or the environment variable AIRFLOW__API__BASE_URL.
            options: Options for the form of a server that can fill it in; asynsched's page does not.
            params_input: Values for that form.

        Raises:
            ValueError: An option or param is unknown, or there is no base URL.
        """
        import os
        from urllib.parse import urlencode, urlsplit

        chosen = [options] if isinstance(options, str) else options or []
        self.validate_chosen_options(chosen)
        if unknown := set(params_input or ()) - set(self.params):
            raise ValueError(f"the params {sorted(unknown)} are not among {sorted(self.params)}")
        base = urlsplit(base_url or defaults.page_url or os.environ.get("AIRFLOW__API__BASE_URL", ""))
        if not base.netloc:
            raise ValueError("generate_link_to_ui() needs a base_url, such as http://localhost:8080")
        query: dict[str, Any] = {"_options": chosen} if chosen else {}
        query |= {**(params_input or {}), "map_index": task_instance.map_index}
        place = f"dags/{task_instance.dag_id}/runs/{task_instance.run_id}/tasks/{task_instance.task_id}"
        return f"{base.scheme}://{base.netloc}{base.path.rstrip('/')}/{place}/required_actions?{urlencode(query)}"

    @staticmethod
    def generate_link_to_ui_from_context(
        *,
        context: Context,
        base_url: str | None = None,
        options: list[str] | None = None,
        params_input: dict[str, Any] | None = None,
    ) -> str:
        """Return the link of `generate_link_to_ui` for the task of a context."""
        task = context["task"]
        if not isinstance(task, HITLOperator):
            raise ValueError(f"task {task.task_id!r} asks nobody: it is no HITLOperator")  # noqa: TRY004 - as in Airflow
        return task.generate_link_to_ui(
            task_instance=context["ti"], base_url=base_url, options=options, params_input=params_input
        )


class ApprovalOperator(HITLOperator, SkipMixin):
    """Asks for approval: "Approve" or "Reject". After a rejection, the tasks downstream are skipped.

    Args:
        ignore_downstream_trigger_rules: Skip all tasks downstream, not only the tasks directly after this one.
        fail_on_reject: Whether a rejection fails the task instead.

    Raises:
        ValueError: Options are given, or `multiple`.
    """

    APPROVE = "Approve"
    REJECT = "Reject"
    FIXED_ARGS = ("options", "multiple")
    is_short_circuit = True

    def __init__(
        self,
        *,
        ignore_downstream_trigger_rules: bool = False,
        fail_on_reject: bool = False,
        **kwargs: Unpack[HITLKeywords],
    ) -> None:
        for name in self.FIXED_ARGS:
            if name in kwargs:
                raise ValueError(f"task {kwargs.get('task_id')!r}: an ApprovalOperator takes no {name}")
        self.ignore_downstream_trigger_rules = ignore_downstream_trigger_rules
        self.fail_on_reject = fail_on_reject
        super().__init__(options=[self.APPROVE, self.REJECT], multiple=False, **kwargs)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        answer = super().execute_complete(context, event)
        approved = self.hitl_summary_extra["approved"] = answer["chosen_options"][0] == self.APPROVE
        if self.fail_on_reject and not approved:
            raise HITLRejectException(f"it was rejected: {self.subject}")
        if not approved:
            self.cut_short(context["ti"], ignore_trigger_rules=bool(self.ignore_downstream_trigger_rules))
        return answer


class HITLBranchOperator(HITLOperator, BaseBranchOperator):
    """Asks which tasks directly after this one are to run; the others are skipped. Returns their ids.

    Args:
        options_mapping: The task_id or group_id for each option that is not one itself.

    Raises:
        ValueError: A key is no option, or a value no string.
    """

    def __init__(
        self,
        *,
        options: list[str],
        multiple: bool = False,
        options_mapping: dict[str, str] | None = None,
        **kwargs: Unpack[HITLKeywords],
    ) -> None:
        super().__init__(options=options, multiple=multiple, **kwargs)
        self.options_mapping = options_mapping or {}
        self.validate_options_mapping()

    def validate_options_mapping(self) -> None:
        """Raise ValueError unless the mapping is one of options to strings."""
        if unknown := set(self.options_mapping) - set(self.options):
            raise ValueError(f"task {self.task_id!r}: options_mapping has keys that are no options: {sorted(unknown)}")
        for option, task_id in self.options_mapping.items():
            if not isinstance(task_id, str):
                wrong = f"options_mapping[{option!r}] must be a task_id, not {task_id!r}"
                raise ValueError(f"task {self.task_id!r}: {wrong}")  # noqa: TRY004 - as in Airflow

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        chosen = super().execute_complete(context, event)["chosen_options"]
        branches = [self.options_mapping.get(option, option) for option in chosen]
        self.hitl_summary_extra["branches_to_execute"] = branches
        return self.branch_into(context, branches)


class HITLEntryOperator(HITLOperator):
    """Asks people to enter the values of `params`. The only option is "OK", unless others are given."""

    OK = "OK"

    def __init__(
        self, *, options: list[str] | None = None, multiple: bool = False, **kwargs: Unpack[HITLKeywords]
    ) -> None:
        if options is None:
            options = [self.OK]
            kwargs.setdefault("defaults", [self.OK])
        super().__init__(options=options, multiple=multiple, **kwargs)
