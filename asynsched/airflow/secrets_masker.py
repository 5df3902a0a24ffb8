"""A masker of secrets as a class: providers derive their own, which look into objects of other types."""

from __future__ import annotations

from asynsched.authoring.masking import MASK, is_sensitive, mask_secret, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FAILED = "<redaction-failed>"


def should_hide_value_for_key(name: Any) -> bool:
    """Return whether a variable or field of that name holds a secret. False for a key that is no text."""
    return isinstance(name, str) and is_sensitive(name)


class SecretsMasker:
    """Hides secrets in values: those passed to `mask_secret`, and the fields whose names are those of secrets.

    All maskers of a process know the same secrets. A derived class replaces `_redact`, which is called for every value
    inside as well.

    Attributes:
        patterns: Always empty, as the secrets are not in the masker; providers copy it.
        replacer: Always None, likewise.
    """

    MAX_RECURSION_DEPTH = 5

    def __init__(self) -> None:
        self.patterns: set[str] = set()
        self.replacer = None

    add_mask = staticmethod(mask_secret)
    should_hide_value_for_key = staticmethod(should_hide_value_for_key)

    def redact(self, item: Any, name: str | None = None, max_depth: int | None = None, replacement: str = MASK) -> Any:
        """Return the value without secrets; tuples replace sets in it. A value that contains itself is hidden whole.

        Args:
            item: Texts, enum members, and dicts, lists, tuples and sets of them; other objects are left as they are.
            name: The value's name.
            max_depth: Down to which level texts are searched for secrets, by default 5. Names count at every level.
            replacement: Stands for a secret.
        """
        depth = max_depth or self.MAX_RECURSION_DEPTH
        try:
            return self._redact(item, name, depth=0, max_depth=depth, replacement=replacement)
        except RecursionError:
            return _FAILED

    def _redact(self, item: Any, name: str | None, depth: int, max_depth: int, replacement: str = MASK) -> Any:
        from enum import Enum

        if name and self.should_hide_value_for_key(name):
            return self._redact_all(item, depth, max_depth, replacement=replacement)
        deeper: dict[str, Any] = {"depth": depth + 1, "max_depth": max_depth, "replacement": replacement}
        if isinstance(item, dict):
            return {key: self._redact(value, key, **deeper) for key, value in item.items()}
        if isinstance(item, (list, tuple, set)):
            found = [self._redact(value, None, **deeper) for value in item]
            return found if isinstance(item, list) else tuple(found)
        if depth > max_depth:
            return item
        return redact(item.value if isinstance(item, Enum) else item, replacement=replacement)

    def _redact_all(
        self, item: Any, depth: int, max_depth: int = MAX_RECURSION_DEPTH, *, replacement: str = MASK
    ) -> Any:
        """Return the value with all its texts hidden, and everything below the last level."""
        if depth > max_depth or isinstance(item, str):
            return replacement
        deeper: dict[str, Any] = {"depth": depth + 1, "max_depth": max_depth, "replacement": replacement}
        if isinstance(item, dict):
            return {key: self._redact_all(value, **deeper) for key, value in item.items()}
        if isinstance(item, (list, tuple, set)):
            found = [self._redact_all(value, **deeper) for value in item]
            return found if isinstance(item, list) else tuple(found)
        return item


MASKER = SecretsMasker()


def secrets_masker() -> SecretsMasker:
    """Return the masker of this process."""
    return MASKER
