"""The names of trigger rules and of weight rules."""

from __future__ import annotations

from asynsched.authoring.airflow_2 import trigger_rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Named(type):
    """Makes the strings of a class its members, like an Enum, whose module every DAG file would load."""

    _members: tuple[str, ...]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> None:
        super().__init__(name, bases, namespace)
        make: Callable[[type, object], str] = str.__new__
        members = {key: make(cls, value) for key, value in namespace.items() if key.isupper()}
        for key, member in members.items():
            setattr(cls, key, member)
        cls._members = tuple(members.values())

    def __iter__(cls) -> Iterator[str]:
        return iter(cls._members)

    def __getattr__(cls, name: str) -> str:
        old = name.lower()
        if name.startswith("_") or (new := trigger_rule(old)) == old:
            raise AttributeError(f"{cls.__name__} has no {name!r}", name=name, obj=cls)
        member: str = cls(new)
        return member


class _Rule(str, metaclass=_Named):
    """A rule's name: a string. Raises ValueError for an unknown name."""

    __slots__ = ()

    def __new__(cls, value: str) -> _Rule:
        for member in cls:
            if member == value:
                return member  # type: ignore[return-value]
        raise ValueError(f"{value!r} is not a {cls.__name__}; use one of {', '.join(cls)}")

    @property
    def value(self) -> str:
        """The name as a plain string."""
        return str(self)

    @property
    def name(self) -> str:
        """The name of the attribute."""
        return self.upper()


class TriggerRule(_Rule):
    """The condition on the ends of its upstream tasks under which a task runs."""

    ALL_SUCCESS = "all_success"
    ALL_FAILED = "all_failed"
    ALL_DONE = "all_done"
    ALL_DONE_MIN_ONE_SUCCESS = "all_done_min_one_success"
    ALL_DONE_SETUP_SUCCESS = "all_done_setup_success"
    ALL_SKIPPED = "all_skipped"
    ONE_SUCCESS = "one_success"
    ONE_FAILED = "one_failed"
    ONE_DONE = "one_done"
    NONE_FAILED = "none_failed"
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"
    NONE_SKIPPED = "none_skipped"
    ALWAYS = "always"


class WeightRule(_Rule):
    """Which tasks' priority weights are added up to a task's total weight."""

    DOWNSTREAM = "downstream"
    UPSTREAM = "upstream"
    ABSOLUTE = "absolute"
