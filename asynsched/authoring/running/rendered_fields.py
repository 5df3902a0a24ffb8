"""The template fields of a try after rendering, as they are kept for people: bounded JSON without secrets."""

from __future__ import annotations

import json
import math

from asynsched.authoring.masking import CUT, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.running.templating import Templater

MOST_CHARACTERS = 4096
"""Of a field's JSON; of a longer one the beginning is kept, as a text (Airflow: core.max_templated_field_length)."""
MOST_CHARACTERS_OF_ALL = 64 * 1024
_DEEPEST = 5


def fields_as_json(task: Templater) -> str:
    """Return the rendered template fields of a task as a JSON object.

    Values that JSON does not have are shown as texts. Secrets that the process knows, and fields whose names are those
    of secrets, are masked.
    """
    fields: dict[str, Any] = {}
    n_left = MOST_CHARACTERS_OF_ALL
    for name in task.template_fields:
        value = redact(_plain(getattr(task, name, None)), name)
        text = json.dumps(value)
        if len(text) > MOST_CHARACTERS:
            whole = value if isinstance(value, str) else text
            value = f"{whole[:MOST_CHARACTERS]}{CUT}"
            text = json.dumps(value)
        n_left -= len(text) + len(name)
        if n_left < 0:
            break
        fields[name] = value
    # As they are: the keeper looks for what a cut has left of a secret.
    return json.dumps(fields, ensure_ascii=False)


def _plain(value: Any, levels: int = _DEEPEST) -> Any:
    """Return a value as JSON has it; what JSON does not have as a text."""
    if isinstance(value, str):
        # Neither is text: half of a surrogate pair, and the character that no database stores.
        return str(value).encode("utf-8", "replace").decode().replace("\0", "�")
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if levels and isinstance(value, dict):
        return {_plain(str(key)): _plain(item, levels - 1) for key, item in value.items()}
    if levels and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, levels - 1) for item in value]
    try:
        return _plain(str(value))
    except Exception as exc:  # noqa: BLE001 - user code may raise anything
        return f"<{type(value).__name__}: {type(exc).__name__}>"
