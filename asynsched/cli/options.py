"""Every setting as an option: its name, environment variable, type in words, and how to read its text."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from asynsched.settings import Settings, field_types

PREFIX = "ASYNSCHED_"


class Option(NamedTuple):
    """One setting.

    Attributes:
        name: Where it is in the settings and in asynsched.toml, e.g. `parse.timeout`.
        type: Its type with its bounds.
        default: What it is when nobody sets it.
        description: What it does, one sentence.
    """

    name: str
    type: Any
    default: Any
    description: str

    @property
    def variable(self) -> str:
        """Its environment variable, e.g. `ASYNSCHED_PARSE__TIMEOUT`."""
        return PREFIX + self.name.upper().replace(".", "__")

    @property
    def expected(self) -> str:
        """Its type in words, e.g. `a number above 0`; an upper bound that nobody meets is left out."""
        return expectation(self.type, largest=False)

    def read(self, text: Any) -> Any:
        """Return the value that a text of the environment, or a value of asynsched.toml, stands for.

        Raises:
            ValueError: It stands for none; the message says what is expected.
        """
        base, _ = _bare(self.type)
        if isinstance(text, str) and get_origin(base) is tuple:
            text = _read_list(text)
        elif isinstance(text, str) and base is bool:
            text = _BOOLEANS.get(text.strip().lower(), text)
        try:
            return msgspec.convert(text, self.type, strict=not isinstance(text, str))
        except msgspec.ValidationError as exc:
            raise ValueError(f"must be {expectation(self.type)}") from exc


_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def all_options() -> dict[str, Option]:
    """Return every option by its name, in the order of the settings."""
    return {option.name: option for option in _options(Settings, "")}


def _options(group: type[Struct], prefix: str) -> Iterator[Option]:
    defaults = dict(zip(group.__struct_fields__, group.__struct_defaults__, strict=True))
    for name, type_ in field_types(group).items():
        if isinstance(type_, type) and issubclass(type_, Struct):
            yield from _options(type_, f"{prefix}{name}.")
        else:
            _, metas = _bare(type_)
            description = next(meta.description for meta in metas if meta.description)
            yield Option(prefix + name, type_, defaults[name], description)


def expectation(type_: Any, *, largest: bool = True) -> str:
    """Return a type and its bounds in words, with the upper ones or without."""
    base, metas = _bare(type_)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(get_args(base))
    if get_origin(base) is tuple:
        return "a list of texts"
    words = {bool: "true or false", int: "a whole number", float: "a number"}.get(base, "a text")
    bounds = [f" above {meta.gt:.15g}" for meta in metas if meta.gt is not None]
    bounds += [f" from {meta.ge:.15g}" for meta in metas if meta.ge is not None]
    bounds += [f" up to {meta.le:,.0f}" for meta in metas if largest and meta.le is not None]
    return words + "".join(bounds)


def _bare(type_: Any) -> tuple[Any, list[Meta]]:
    metas = [meta for meta in getattr(type_, "__metadata__", ()) if isinstance(meta, Meta)]
    base = get_args(type_)[0] if metas else type_
    if get_origin(base) in (Union, UnionType):  # or None: nothing was set
        base, more = _bare(get_args(base)[0])
        return base, metas + more
    return base, metas


def _read_list(text: str) -> list[Any]:
    """A list in an environment variable is JSON, or is separated by commas."""
    if text.lstrip().startswith("["):
        try:
            decoded = msgspec.json.decode(text)
        except msgspec.DecodeError as exc:
            raise ValueError("must be a list: JSON, or texts separated by commas") from exc
        return list(decoded)
    return [part.strip() for part in text.split(",") if part.strip()]
