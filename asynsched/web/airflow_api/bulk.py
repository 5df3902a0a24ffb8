"""Many things created, changed or deleted in one request, by actions: their bodies, and the answer to each.

An action that does not fit what exists does nothing and is reported among the errors; the other actions are done.

Source: the bulk endpoints of Airflow's REST API.
"""

from http import HTTPStatus
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

from asynsched.queries.paging import BadRequest

T = TypeVar("T", bound=Struct)
MOST_ENTITIES = 1000
"""Things of one request."""
OnExistence = Literal["fail", "skip", "overwrite"]
OnNonExistence = Literal["fail", "skip"]


class BulkCreateAction(Struct, Generic[T], frozen=True, forbid_unknown_fields=True, tag_field="action", tag="create"):
    """Things to create. `action_on_existence`: for those that exist."""

    entities: tuple[T, ...]
    action_on_existence: OnExistence = "fail"


class BulkUpdateAction(Struct, Generic[T], frozen=True, forbid_unknown_fields=True, tag_field="action", tag="update"):
    """Things to change. `action_on_non_existence`: for those that do not exist."""

    entities: tuple[T, ...]
    update_mask: tuple[str, ...] | None = None
    action_on_non_existence: OnNonExistence = "fail"


class BulkDeleteAction(Struct, Generic[T], frozen=True, forbid_unknown_fields=True, tag_field="action", tag="delete"):
    """Things to delete, by their names or whole. `action_on_non_existence`: for those that do not exist."""

    entities: tuple[str | T, ...]
    action_on_non_existence: OnNonExistence = "fail"


class BulkBody(Struct, Generic[T], frozen=True, forbid_unknown_fields=True):
    """What to do, in this order."""

    actions: tuple[BulkCreateAction[T] | BulkUpdateAction[T] | BulkDeleteAction[T], ...]


class BulkActionResponse(Struct, kw_only=True):
    """The things that were created, changed or deleted, and the reasons why others were not."""

    success: list[str] = []
    errors: list[dict[str, Any]] = []

    def refuse(self, problem: str, status: HTTPStatus) -> None:
        """Report why an action was not done."""
        self.errors.append({"error": problem, "status_code": int(status)})


class BulkResponse(Struct, frozen=True, kw_only=True):
    """The results of each kind of action; null: the request has no such action."""

    create: BulkActionResponse | None = None
    update: BulkActionResponse | None = None
    delete: BulkActionResponse | None = None


Action: TypeAlias = BulkCreateAction[T] | BulkUpdateAction[T] | BulkDeleteAction[T]


def answering(body: BulkBody[T]) -> tuple[list[tuple[Action[T], BulkActionResponse]], BulkResponse]:
    """Return each action with the answer to fill in, and all answers. Raises BadRequest for too many things."""
    if sum(len(action.entities) for action in body.actions) > MOST_ENTITIES:
        raise BadRequest(f"A request has {MOST_ENTITIES} entities at most.")
    words = [str(type(action).__struct_config__.tag) for action in body.actions]
    answers = {word: BulkActionResponse() for word in words}
    return [(action, answers[word]) for action, word in zip(body.actions, words, strict=True)], BulkResponse(**answers)
