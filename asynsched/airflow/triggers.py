"""BaseEventTrigger, from which providers derive triggers that wait for events of other systems."""

from __future__ import annotations

from asynsched.authoring.triggers.base import BaseTrigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any


class BaseEventTrigger(BaseTrigger):
    """A trigger that could update an asset as well. Here tasks wait for it, as for every trigger."""

    supports_triggerer_queue = False
    asset_state_store: Any = None

    @staticmethod
    def hash(classpath: str, kwargs: dict[str, Any]) -> int:
        """Return a number that is the same for triggers of the same class with the same arguments."""
        return hash((classpath, repr(sorted(kwargs.items()))))

    def shared_stream_key(self) -> Hashable | None:
        """Return None: every trigger watches by itself."""
        return None
