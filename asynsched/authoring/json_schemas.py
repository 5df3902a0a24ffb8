"""Checks values against the JSON schemas of params, whose patterns have little time.

A pattern such as `^(a+)+$` can take years for a short value, and `re`, which jsonschema uses, cannot be interrupted:
whoever may write a DAG file or choose a value could stop the scheduler. So `regex` matches here: it has a timeout, and
lets other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from time import monotonic  # noqa: TID251 - limits the machine's own time
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError, validators
from referencing import Registry
from referencing.exceptions import Unresolvable

from asynsched.authoring.exceptions import ParamValidationError

MOST_SECONDS = 0.2
"""Of all patterns together, for one value."""
LEAST_SECONDS = 0.001
"""Of a pattern: `regex` takes no time as no limit."""
UNCHECKED = (
    "its schema has unevaluatedProperties beside patternProperties, which asynsched does not check: use"
    " additionalProperties"
)
TOO_DEEP = "its schema, or the value, is nested too deeply"

_patterns_end_at: ContextVar[float] = ContextVar("patterns_end_at")


def check_value(schema: dict[str, Any], value: Any) -> None:
    """Raise ParamValidationError, saying why, unless a value fits a valid schema."""
    kind = _with_limits(validators.validator_for(schema, default=Draft202012Validator))
    # Without a registry, a reference to a URL would be fetched.
    validator = kind(schema, format_checker=FormatChecker(), registry=Registry())
    earlier = _patterns_end_at.set(monotonic() + MOST_SECONDS)
    try:
        validator.validate(value)
    except RecursionError:
        raise ParamValidationError(TOO_DEEP) from None
    except Unresolvable as exc:
        raise ParamValidationError(f"its schema refers to something that it does not contain: {exc.ref!r}") from None
    except ValidationError as exc:
        raise ParamValidationError(f"{exc.message} (the value {value!r} must fit {schema})") from None
    finally:
        _patterns_end_at.reset(earlier)


def check_schema(schema: dict[str, Any]) -> None:
    """Raise ParamValidationError, naming the invalid part, unless the schema is a JSON schema."""
    try:
        validators.validator_for(schema).check_schema(schema)
        names = set(_keys_of(schema))
    except RecursionError:
        raise ParamValidationError(TOO_DEEP) from None
    except SchemaError as exc:
        # The first of several alternatives is the usual one.
        wrong = exc.context[0] if exc.context else exc
        where = f" at {exc.json_path.removeprefix('$.')}" if exc.path else ""
        raise ParamValidationError(f"its schema is invalid{where}: {wrong.message}") from None
    if {"unevaluatedProperties", "patternProperties"} <= names:
        raise ParamValidationError(UNCHECKED)


def _keys_of(part: Any) -> Iterator[str]:
    """Yield the keys of all objects in a schema."""
    if isinstance(part, Mapping):
        yield from part
        part = part.values()
    elif not isinstance(part, list | tuple):
        return
    for one in part:
        yield from _keys_of(one)


@cache
def _with_limits(kind: Any) -> Any:
    """Return a class of validators whose patterns are limited."""
    own = {"pattern": _pattern, "patternProperties": _pattern_properties}
    if (additional := kind.VALIDATORS.get("additionalProperties")) is not None:
        own["additionalProperties"] = _additional_properties(additional)
    extend: Any = validators.extend  # has no types
    made = extend(kind, {name: check for name, check in own.items() if name in kind.VALIDATORS})

    def evolve(self: Any, **changes: Any) -> Any:
        """Return a validator of a part of the schema; a part that names its own dialect is limited as well."""
        part = _with_limits(validators.validator_for(changes.get("schema", self.schema), default=kind))
        kept = {one.alias: getattr(self, one.name) for one in self.__attrs_attrs__ if one.init}
        return part(**{**kept, **changes})

    made.evolve = evolve
    return made


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches a part of a text. Raises ParamValidationError if it takes too long."""
    left = max(LEAST_SECONDS, _patterns_end_at.get() - monotonic())
    try:
        return regex.search(pattern, text, timeout=left) is not None
    except TimeoutError:
        raise ParamValidationError(
            f"the pattern {pattern[:200]!r} of its schema took too long to match: write it without nested repetitions"
        ) from None
    except regex.error as exc:
        raise ParamValidationError(f"the pattern {pattern[:200]!r} of its schema is invalid: {exc}") from None


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(plain: Any) -> Any:
    """Return the check of additionalProperties that finds by itself which names have a pattern."""

    def check(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
        patterns = schema.get("patternProperties", {})
        if patterns and validator.is_type(instance, "object"):
            matched = {name: True for name in instance if any(_matches(pattern, name) for pattern in patterns)}
            known = {name: part for name, part in schema.items() if name != "patternProperties"}
            schema = {**known, "properties": {**schema.get("properties", {}), **matched}}
        return plain(validator, additional, instance, schema) or ()

    return check
