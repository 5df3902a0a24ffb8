"""Questions about the configuration: Airflow's options that the settings answer, and the settings themselves."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import msgspec

from asynsched.settings import SECRET_OPTIONS, URL_OPTIONS, Settings, option_names
from asynsched.store.engines.urls import without_secrets

HIDDEN = "< hidden >"
SECTION = "asynsched"
"""The section of the settings, under their own names."""


def list_options(settings: Settings) -> Mapping[str, Mapping[str, str]]:
    """Return the options of each section, without secrets."""
    found: dict[str, dict[str, str]] = {}
    for name, value in settings.airflow_options.items():
        section, _, option = name.partition(".")
        found.setdefault(section, {})[option] = value
    found[SECTION] = {name: _shown(name, attrgetter(name)(settings)) for name in option_names(Settings)}
    return found


def changed_options(settings: Settings) -> frozenset[str]:
    """Return the names of the settings that do not have their defaults."""
    usual = Settings()
    return frozenset(name for name in option_names(Settings) if attrgetter(name)(settings) != attrgetter(name)(usual))


def _shown(name: str, value: Any) -> str:
    if name in SECRET_OPTIONS and value:
        return HIDDEN
    if name in URL_OPTIONS and value:
        return without_secrets(str(value))
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
