"""XComEncoder and XComDecoder: XComs as JSON texts, for classes that keep XComs elsewhere."""

from __future__ import annotations

import json

from asynsched.authoring.transport import from_transport, to_transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class XComEncoder(json.JSONEncoder):
    """Writes every value that can be an XCom: `json.dumps(value, cls=XComEncoder)`."""

    def encode(self, o: Any) -> str:
        """Return the JSON text. Raises as `to_transport` does."""
        return super().encode(to_transport(o))

    def iterencode(self, o: Any, _one_shot: bool = False) -> Iterator[str]:
        """Yield parts of the JSON text. Raises as `to_transport` does."""
        # `encode` calls this with a value that is written already.
        return super().iterencode(o if _one_shot else to_transport(o), _one_shot)


class XComDecoder(json.JSONDecoder):
    """Reads the text that XComEncoder has written: `json.loads(text, cls=XComDecoder)`."""

    def decode(self, s: str, *where: Any) -> Any:
        """Return the value. Raises ValueError for a text that is not from XComEncoder."""
        return from_transport(super().decode(s, *where))
