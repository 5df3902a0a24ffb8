"""A task asks people, and waits for an answer: the question, the answer, and HITLTrigger.

HITL stands for "human in the loop". No process waits: the scheduler resumes the task when somebody has answered.

Source: Apache Airflow's `airflow.sdk.execution_time.hitl`, and the standard provider's `triggers.hitl`.
"""

from __future__ import annotations

import datetime as dt

from asynsched.authoring.exceptions import AsynschedException, TaskDeferred
from asynsched.authoring.supervisor import ask
from asynsched.authoring.timezone import utcnow
from asynsched.authoring.triggers.base import BaseTrigger, TriggerEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import Any

LONGEST_SUBJECT = 200
"""Characters of a subject that reasons and logs show."""


class HITLUser(dict[str, str]):
    """A person: `HITLUser(id="anna", name="Anna Smith")`, a dict of these two."""


class HITLDetail:
    """A question with its answer. The attributes about the answer are None, or empty, while there is none."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.options: list[str] = fields["options"]
        self.chosen_options: list[str] | None = fields["chosen_options"]
        self.params_input: dict[str, Any] = fields["params_input"]
        at, user = fields["responded_at"], fields["responded_by"]
        self.responded_at = None if at is None else dt.datetime.fromisoformat(at)
        self.responded_by_user = None if user is None else HITLUser(user)

    @property
    def response_received(self) -> bool:
        """Whether somebody has answered."""
        return self.responded_at is not None


_asked: dict[str, Any] | None = None
"""The question that this process asked last, for the wait that follows."""


def upsert_hitl_detail(
    ti_id: uuid.UUID | None = None,  # noqa: ARG001 - as in Airflow
    options: Sequence[str] = (),
    subject: str = "",
    body: str | None = None,
    defaults: Sequence[str] | None = None,
    multiple: bool = False,
    params: Mapping[str, Any] | None = None,
    assigned_users: Sequence[Mapping[str, str]] | None = None,
) -> None:
    """Ask a question, in place of an earlier one of this task. Then raise TaskAwaitingInput, or defer to HITLTrigger.

    Args:
        ti_id: Accepted as in Airflow; a task asks for itself.
        params: By name, a value or a dict of `value`, `description` and `schema`.
        assigned_users: Who may answer; None or empty: everybody.
    """
    global _asked
    question = {
        "subject": str(subject), "body": body, "options": list(options), "multiple": bool(multiple),
        "defaults": None if defaults is None else list(defaults),
        "params": {name: _whole_param(param) for name, param in (params or {}).items()},
        "assigned_users": [{"id": str(user["id"]), "name": str(user["name"])} for user in assigned_users or ()],
    }  # fmt: skip
    ask("hitl_ask", question=question)
    _asked = question


def get_hitl_detail_content_detail(ti_id: uuid.UUID | None = None) -> HITLDetail:  # noqa: ARG001 - as in Airflow
    """Return the task's own question, with the answer once there is one. Raises SupervisorNotFound if it asked none."""
    return HITLDetail(ask("hitl_get"))


def update_hitl_detail_response(
    ti_id: uuid.UUID | None = None,  # noqa: ARG001 - as in Airflow
    chosen_options: Sequence[str] = (),
    params_input: Mapping[str, Any] | None = None,
) -> HITLDetail:
    """Answer the task's own question in no person's name, and return it. Raises SupervisorError if it has an answer."""
    return HITLDetail(ask("hitl_answer", chosen_options=list(chosen_options), params_input=dict(params_input or {})))


def _whole_param(param: Any) -> dict[str, Any]:
    if isinstance(param, dict) and "value" in param:
        return {"value": param["value"], "description": param.get("description"), "schema": param.get("schema") or {}}
    return {"value": param, "description": None, "schema": {}}


class HITLTrigger(BaseTrigger):
    """Waits for the answer to the question that the task asked by `upsert_hitl_detail`.

    The event is a dict of `chosen_options`, `params_input`, `responded_at`, `responded_by_user` and `timedout`; or of
    `error` and `error_type` if the time is over and there are no defaults.

    Args:
        ti_id: Accepted as in Airflow.
        defaults: The options that hold when the time is over.
        params: By name, a value or a dict of `value`, `description` and `schema`; the values hold with the defaults.
        timeout_datetime: When the time is over; None: never.
        poke_interval: Has no effect: an answer is an event.
    """

    def __init__(
        self,
        *,
        ti_id: uuid.UUID | None = None,
        options: Sequence[str] = (),
        params: Mapping[str, Any] | None = None,
        defaults: Sequence[str] | None = None,
        multiple: bool = False,
        timeout_datetime: dt.datetime | None = None,
        poke_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ti_id = ti_id
        self.options = list(options)
        self.params = dict(params or {})
        self.defaults = None if defaults is None else list(defaults)
        self.multiple = multiple
        self.timeout_datetime = timeout_datetime
        self.poke_interval = poke_interval
        self.subject = "" if _asked is None else _asked["subject"]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("options", "params", "defaults", "multiple", "timeout_datetime", "poke_interval")
        return f"{HITLTrigger.__module__}.{HITLTrigger.__qualname__}", {name: getattr(self, name) for name in names}

    def awaited_input(self) -> dict[str, Any]:
        left = None
        if self.timeout_datetime is not None:
            left = max((self.timeout_datetime - utcnow()).total_seconds(), 0)
        values = {name: value for name, value in self._values().items() if value is not None}
        return {"subject": self.shown_subject, "defaults": self.defaults, "params": values, "timeout": left}

    @property
    def shown_subject(self) -> str:
        """The subject in one line."""
        line = " ".join(self.subject.split())
        return line if len(line) <= LONGEST_SUBJECT else f"{line[:LONGEST_SUBJECT]}…"

    def _values(self) -> dict[str, Any]:
        return {name: _whole_param(param)["value"] for name, param in self.params.items()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Take the defaults: this trigger runs only in a run in the foreground, where nobody can answer."""
        if self.defaults is None:
            raise AsynschedException(
                "only a scheduler can pass on a person's answer: give the task `defaults` for a run without one"
            )
        self.log.info("Nobody can answer in a run without a scheduler: the defaults hold, %s", self.defaults)
        yield TriggerEvent({
            "chosen_options": self.defaults, "params_input": self._values(), "responded_at": utcnow(),
            "responded_by_user": None, "timedout": True,
        })  # fmt: skip

    def __repr__(self) -> str:
        return f"a person's answer: {self.shown_subject}"


class TaskAwaitingInput(TaskDeferred):
    """Raised after `upsert_hitl_detail`: the task waits for the answer, and its process ends.

    Args:
        method_name: The operator's method to call with the answer, as `event`; see HITLTrigger.
        kwargs: Its arguments in addition to `event`.
        timeout: The longest wait; then the defaults hold.
    """

    def __init__(
        self, *, method_name: str, kwargs: dict[str, Any] | None = None, timeout: dt.timedelta | None = None
    ) -> None:
        if _asked is None:
            raise AsynschedException("a task that waits for an answer must ask first, by upsert_hitl_detail()")
        about = {name: _asked[name] for name in ("options", "params", "defaults", "multiple")}
        until = None if timeout is None else utcnow() + timeout
        super().__init__(trigger=HITLTrigger(timeout_datetime=until, **about), method_name=method_name, kwargs=kwargs)
