"""The secrets that a try or a parse was given, and their masks in what people read of it.

The keeper masks the log and the errors of a try, the scheduler the output and the errors of a parse. Both use this
code: a secret is replaced however a program spells it, and each line of it by itself.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from asynsched.authoring.masking import CUT, MIN_SECRET_LENGTH, secrets_in_answer, sensitive_texts

MASK = b"***"
SHORTEST_PIECE = 3
"""Characters of a secret beside a cut that are masked; fewer tell little, and would mask words."""
_CUT = CUT.encode()
MOST_CUTS = 100
"""Cuts in a text that are looked at, the last ones: a text with many more must not hold up the keeper."""
FIELDS = "fields"
MASK_SECRET = "mask_secret"  # noqa: S105 - the name of a request
"""A task's request to mask secrets that it has from elsewhere; the keeper answers it itself."""
MAX_SECRETS = 2_000
"""Spellings of secrets that a task may have masked, and that a parse may be given: each is looked for in every text."""


class Secrets:
    """The secrets known to one try or parse, those that it has inherited first."""

    def __init__(self, inherited: "Secrets | None" = None) -> None:
        self.values: tuple[bytes, ...] = () if inherited is None else inherited.values
        """The longest first: a secret may contain another."""

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def longest(self) -> int:
        """Length of the longest secret, in bytes."""
        return len(self.values[0]) if self.values else 0

    def learn(self, operation: str, arguments: dict[str, Any], value: Any) -> None:
        """Learn the secrets in an answer to the try, or to the parse."""
        found = set(self.values)
        for text in _secret_texts(operation, arguments, value):
            # Output is masked line by line, so a key of several lines is as many secrets.
            lines = text.splitlines()
            for line in {*_spellings(text), *lines, *map(_in_one_line, lines)}:
                if len(line) >= MIN_SECRET_LENGTH:
                    found.add(_bytes_of(line))
        self.values = tuple(sorted(found, key=len, reverse=True))

    def learn_told(self, arguments: dict[str, Any]) -> str:
        """Learn the secrets that a task names. Returns why it learns none of them; empty if it learns them."""
        before = self.values
        self.learn(MASK_SECRET, arguments, None)
        if len(self.values) <= MAX_SECRETS:
            return ""
        self.values = before
        return f"{MASK_SECRET}: a task may have at most about {MAX_SECRETS // 4} secrets masked"

    def learn_fields(self, kwargs: dict[str, Any]) -> None:
        """Learn the secrets, by their names, in the arguments of a trigger or of the method of a resumed task."""
        self.learn(FIELDS, {}, kwargs)

    def mask_outcomes(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a trigger host's outcomes, with secrets masked in reasons and tracebacks."""
        outcomes = arguments.get("outcomes")
        if not self.values or not isinstance(outcomes, list):
            return arguments
        return {**arguments, "outcomes": [self._masked_outcome(outcome) for outcome in outcomes]}

    def _masked_outcome(self, outcome: Any) -> Any:
        if not isinstance(outcome, dict):
            return outcome
        texts = {name: outcome[name] for name in ("detail", "traceback") if name in outcome}
        return {**outcome, **{name: self._masked_texts(value) for name, value in texts.items()}}

    def _masked_texts(self, value: Any) -> Any:
        """Return a text or a list of texts, masked. An outcome has nothing else there."""
        if isinstance(value, list):
            return [self.mask_cut_text(item) for item in value if isinstance(item, str)]
        return self.mask_cut_text(value) if isinstance(value, str) else None

    def mask(self, data: bytes) -> bytes:
        """Return the data with every secret replaced."""
        for value in self.values:
            data = data.replace(value, MASK)
        return data

    def mask_cut_text(self, text: str) -> str:
        """Return a text with every secret replaced, and each piece of a secret that ends or begins at a cut."""
        return self.mask_cut(_bytes_of(text)).decode("utf-8", "replace") if self.values else text

    def mask_cut(self, data: bytes) -> bytes:
        """Return the data with every secret replaced, and each piece of a secret that ends or begins at a cut."""
        data = self.mask(data)
        if _CUT not in data:
            return data
        before, *others = data.rsplit(_CUT, MOST_CUTS)
        for after in others:
            before = self._without_beginning(before) + _CUT + self._without_end(after)
        return before

    def n_begun(self, data: bytes) -> int:
        """Return the length of the beginning of a secret, however short, at the end of the data."""
        return max((_overlap(data, value, 1) for value in self.values), default=0)

    def _without_beginning(self, data: bytes) -> bytes:
        """Return the data without the beginning of a secret at its end."""
        n = max((_overlap(data, value) for value in self.values), default=0)
        return data[: len(data) - n] + MASK if n else data

    def _without_end(self, data: bytes) -> bytes:
        """Return the data without the end of a secret at its beginning."""
        n = max((_overlap(value, data) for value in self.values), default=0)
        return MASK + data[n:] if n else data


def _overlap(first: bytes, second: bytes, shortest: int = SHORTEST_PIECE) -> int:
    """Return the length of the longest text that ends the first and begins the second; 0 for a shorter one."""
    longest = min(len(first), len(second))
    # Only where the beginning of the second occurs can the end of the first be compared.
    place = first.find(second[:shortest], len(first) - longest)
    while 0 <= place <= len(first) - shortest:
        if second.startswith(first[place:]):
            return len(first) - place
        place = first.find(second[:shortest], place + 1)
    return 0


def _secret_texts(operation: str, arguments: dict[str, Any], value: Any) -> Iterator[str]:
    if operation in (FIELDS, "trigger_work"):
        yield from sensitive_texts(value)
    elif operation == MASK_SECRET:
        yield from sensitive_texts(arguments.get("secrets"), all_of_it=True)
    else:
        yield from secrets_in_answer(operation, arguments, value)


def _spellings(text: str) -> set[str]:
    """Return a secret as programs print it: as it is, in a URL, in Python's own spelling, in JSON, and in one line."""
    in_json = {json.dumps(text), json.dumps(text, ensure_ascii=False)}
    return {
        text,
        _in_one_line(text),
        quote(_bytes_of(text), safe=""),
        quote(_bytes_of(text)),
        quote_plus(_bytes_of(text)),
        *(spelled[1:-1] for spelled in (repr(text), *in_json)),
    }


def _bytes_of(text: str) -> bytes:
    """Return a text as programs write it: of one from the environment, the bytes that were not UTF-8 come back."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _in_one_line(text: str) -> str:
    """Return a text as messages of errors have it."""
    return " ".join(text.split())
