"""Checks values against the JSON schemas of params, within a limit of time.

Whoever may write a DAG file or choose a value could stop the scheduler otherwise, in two ways:

- A pattern such as `^(a+)+$` can take years for a short value, and `re`, which jsonschema uses, cannot be interrupted.
  So `regex` matches here: it has a timeout, and lets other threads run meanwhile.
- A schema of a few lines can multiply its own parts, by `allOf`, `anyOf` and `$ref` in one another. So each step into a
  part looks at the time of the processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from time import monotonic, thread_time  # noqa: TID251 - limits the machine's own time
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError, validators
from referencing import Registry
from referencing.exceptions import Unresolvable

from asynsched.authoring.exceptions import ParamValidationError

MOST_SECONDS = 2.0
"""Of the processor, for a whole check."""
MOST_PATTERN_SECONDS = 0.2
"""Of all patterns of a check together."""
LEAST_SECONDS = 0.001
"""Of a pattern: `regex` takes no time as no limit."""
UNCHECKED = (
    "its schema has unevaluatedProperties beside patternProperties, which asynsched does not check: use"
    " additionalProperties"
)
TOO_LONG = (
    f"to check it against its schema takes more than {MOST_SECONDS:g} s: a part of a schema that others refer to more"
    " than once multiplies; simplify the schema, or give a smaller value"
)
TOO_DEEP = "its schema, or the value, is nested too deeply"


class _Budget:
    """The time that is left for a check: the moment of this thread's processor time, and seconds for patterns."""

    def __init__(self) -> None:
        self.ends_at = thread_time() + MOST_SECONDS
        self.pattern_seconds = MOST_PATTERN_SECONDS

    def look(self) -> None:
        """Raise ParamValidationError if no time is left."""
        if thread_time() > self.ends_at:
            raise ParamValidationError(TOO_LONG)


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


@contextmanager
def limited_time() -> Iterator[_Budget]:
    """Limit the time of all checks in the block together; in a block within another one, the outer limit counts."""
    outer = _budget.get()
    if outer is not None:
        yield outer
        return
    token = _budget.set(own := _Budget())
    try:
        yield own
    finally:
        _budget.reset(token)


def check_value(schema: dict[str, Any], value: Any) -> None:
    """Raise ParamValidationError, saying why, unless a value fits a valid schema."""
    kind = _with_limits(validators.validator_for(schema, default=Draft202012Validator))
    # Without a registry, a reference to a URL would be fetched.
    validator = kind(schema, format_checker=FormatChecker(), registry=Registry())
    with limited_time() as budget:
        budget.look()
        try:
            validator.validate(value)
        except RecursionError:
            raise ParamValidationError(TOO_DEEP) from None
        except Unresolvable as exc:
            raise ParamValidationError(
                f"its schema refers to something that it does not contain: {exc.ref!r}"
            ) from None
        except ValidationError as exc:
            raise ParamValidationError(f"{exc.message} (the value {value!r} must fit {schema})") from None


def check_schema(schema: dict[str, Any]) -> None:
    """Raise ParamValidationError, naming the invalid part, unless the schema is a JSON schema."""
    with limited_time() as budget:
        budget.look()
        try:
            _check_dialect(schema)
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


def _check_dialect(schema: dict[str, Any]) -> None:
    """Raise SchemaError unless the schema fits the schema of its own dialect: `check_schema` of jsonschema, limited."""
    rules = validators.validator_for(schema).META_SCHEMA
    kind = validators.validator_for(rules)
    for error in _with_limits(kind)(rules, format_checker=kind.FORMAT_CHECKER).iter_errors(schema):
        raise SchemaError.create_from(error)


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
    own = {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
    if (additional := kind.VALIDATORS.get("additionalProperties")) is not None:
        own["additionalProperties"] = _additional_properties(additional)
    extend: Any = validators.extend  # has no types
    made = extend(kind, {name: check for name, check in own.items() if name in kind.VALIDATORS})

    def evolve(self: Any, **changes: Any) -> Any:
        """Return a validator of a part of the schema; a part that names its own dialect is limited as well.

        Every step into a part of a schema comes here.
        """
        if (budget := _budget.get()) is not None:
            budget.look()
        part = _with_limits(validators.validator_for(changes.get("schema", self.schema), default=kind))
        kept = {one.alias: getattr(self, one.name) for one in self.__attrs_attrs__ if one.init}
        return part(**{**kept, **changes})

    made.evolve = evolve
    return made


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches a part of a text. Raises ParamValidationError if it takes too long."""
    with limited_time() as budget:
        began_at = monotonic()
        try:
            return regex.search(pattern, text, timeout=max(LEAST_SECONDS, budget.pattern_seconds)) is not None
        except TimeoutError:
            problem = "took too long to match: write it without nested repetitions"
            raise ParamValidationError(f"the pattern {pattern[:200]!r} of its schema {problem}") from None
        except regex.error as exc:
            raise ParamValidationError(f"the pattern {pattern[:200]!r} of its schema is invalid: {exc}") from None
        finally:
            budget.pattern_seconds -= monotonic() - began_at


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


def _unique_items(validator: Any, is_wanted: bool, instance: Any, _: Any) -> Iterator[ValidationError]:
    """Check uniqueItems in one pass; jsonschema compares each pair of items that cannot be sorted."""
    if not is_wanted or not validator.is_type(instance, "array"):
        return
    seen = set()
    with limited_time() as budget:
        for item in instance:
            budget.look()
            seen.add(_hashable(item))
    if len(seen) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _hashable(value: Any) -> Any:
    """Return what is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, _hashable(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(map(_hashable, value))
    return ("boolean", value) if isinstance(value, bool) else ("plain", value)
