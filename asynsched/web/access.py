"""Who asks, and what they may."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from msgspec import Struct
from starlette.requests import Request

from asynsched.errors import AsynschedError
from asynsched.queries.permissions import Permission as Permission  # for programs that tell by themselves who asks
from asynsched.queries.users import Issuer


class Identity(Struct, frozen=True):
    """Who asks.

    Attributes:
        name: For the audit.
        permission: What they may with everything that has no rule of its own.
        of_dags: What they may with single DAGs, by dag_id. None: `permission` counts for each.
        of_other_dags: What they may with the DAGs that `of_dags` does not name.
        issuer: Makes their tokens; None: they are no user of this database, and can have none.
    """

    name: str
    permission: Permission
    of_dags: Mapping[str, Permission] | None = None
    of_other_dags: Permission = Permission.NOTHING
    issuer: Issuer | None = None

    def may(self, permission: Permission, dag_id: str | None = None) -> bool:
        """Whether this is allowed, for one DAG if it is named."""
        if dag_id is None or self.of_dags is None:
            return self.permission >= permission
        return self.of_dags.get(dag_id, self.of_other_dags) >= permission

    @property
    def dag_ids(self) -> frozenset[str] | None:
        """The DAGs that may be seen; None: all."""
        return self.dags_for(Permission.VIEW)

    def dags_for(self, permission: Permission) -> frozenset[str] | None:
        """Return the DAGs for which this is allowed; None: all."""
        if self.of_dags is None:
            return None if self.permission >= permission else frozenset()
        if self.of_other_dags >= permission:
            return None
        return frozenset(dag_id for dag_id, may in self.of_dags.items() if may >= permission)

    @property
    def highest(self) -> Permission:
        """The highest permission that they have, for everything or for a DAG."""
        return max(self.permission, self.of_other_dags, *(self.of_dags or {}).values())

    def limited(self, permission: Permission, dag_ids: Collection[str] | None) -> "Identity":
        """Return the same one with rights up to this permission and, unless None, to these DAGs only."""
        of_dags, of_others = self.of_dags, self.of_other_dags
        if dag_ids is not None:
            of_dags = {dag_id: self._of_dag(dag_id) for dag_id in dag_ids}
            of_others = Permission.NOTHING
        return Identity(
            name=self.name,
            permission=min(self.permission, permission, Permission.VIEW if dag_ids is not None else permission),
            of_dags=None if of_dags is None else {dag_id: min(may, permission) for dag_id, may in of_dags.items()},
            of_other_dags=min(of_others, permission),
        )

    def _of_dag(self, dag_id: str) -> Permission:
        return self.permission if self.of_dags is None else self.of_dags.get(dag_id, self.of_other_dags)


NOBODY = Identity("nobody", Permission.NOTHING, {})
"""Who asks without having signed in."""


class NotAllowed(AsynschedError):
    """The user has no right to it."""


class NotSignedIn(AsynschedError):
    """Nobody is signed in, and the request is not open to everybody."""

    def __init__(self, message: str = "Sign in, or send a token: Authorization: Bearer TOKEN.") -> None:
        super().__init__(message)


class TooManyAttempts(AsynschedError):
    """Somebody guesses passwords. `retry_after` is in seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"Too many failed attempts. Try again in {retry_after} s.")
        self.retry_after = retry_after


class Access(ABC):
    """Tells who asks."""

    @abstractmethod
    async def identify(self, request: Request) -> Identity:
        """Return who makes a request. Raises NotSignedIn."""
