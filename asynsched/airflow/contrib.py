"""What replaces the modules of `airflow.contrib`, which Airflow 2 moved into provider packages."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PROVIDERS = "airflow.providers."
_MANY = 4
_UNKNOWN = "Airflow 2 moved its contents into provider packages; import them from airflow.providers"


def replacement(module: str) -> str:
    """Return the advice on a module of `airflow.contrib`: the provider's classes to use in its place."""
    found = list(_classes(module.removeprefix("airflow.contrib.")))
    if not found:
        return _UNKNOWN
    places = dict.fromkeys(place for place, _, _ in found)
    if len(found) > _MANY:
        return f"its classes are now in {' and '.join(places)}"
    classes = [f"{place}.{now}" + ("" if now == old else f" in place of {old}") for place, old, now in found]
    return f"use {', '.join(classes)}"


def _classes(module: str) -> Iterator[tuple[str, str, str]]:
    """Yield the modules of the providers that have its classes, with the old and the present name of each class."""
    path = os.path.join(os.path.dirname(__file__), "contrib.txt")  # noqa: PTH118, PTH120 - pathlib is heavy
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(f"{module} "):
                _, place, *classes = line.split()
                for one in classes:
                    old, _, now = one.partition("=")
                    yield _PROVIDERS + place, old, now or old
