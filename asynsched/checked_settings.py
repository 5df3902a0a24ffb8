"""What groups of settings are made of: types with bounds and descriptions, checked however they are made."""

from functools import cache
from math import isnan
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct

from asynsched.errors import SettingsError

LONGEST_SECONDS = 1e9
"""About 30 years: longer ones leave the range of dates."""
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
Count = Annotated[int, Meta(ge=1, le=10**15)]


def doc(text: str) -> Meta:
    """Return what a setting means, for its annotation."""
    return Meta(description=text)


@cache
def field_types(struct: type[Struct]) -> dict[str, Any]:
    """Return the fields of a group of settings with their types, bounds and descriptions included."""
    return get_type_hints(struct, include_extras=True)


class InvalidSetting(SettingsError):
    """A setting has a value that it cannot have. `name` is the option, e.g. `parse.timeout`."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class CheckedSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that are checked however they are made: msgspec by itself checks only what it decodes."""

    def __post_init__(self) -> None:
        """Raise InvalidSetting for a value of the wrong type or out of bounds."""
        for name, type_ in field_types(type(self)).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, type_)
            except msgspec.ValidationError as exc:
                raise self.invalid(name, str(exc)) from exc
            if isinstance(value, float) and isnan(value):
                raise self.invalid(name, "must be a number, not nan")

    def invalid(self, name: str, problem: str) -> InvalidSetting:
        """Return the error of one of these settings, with the group's name in the option's."""
        group = type(self).__name__.removesuffix("Settings").lower()
        return InvalidSetting(f"{group}.{name}" if group else name, problem)
