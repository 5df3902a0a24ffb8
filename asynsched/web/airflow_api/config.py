"""`/config`: the configuration, if the setting `web.expose_config` allows it. Secrets are always hidden."""

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct
from starlette.responses import PlainTextResponse, Response

from asynsched.errors import NotFound
from asynsched.queries.configuration import list_options
from asynsched.store.rows import near_names
from asynsched.web.access import NotAllowed, Permission
from asynsched.web.airflow_api.api import AIRFLOW_API, wants_text
from asynsched.web.endpoint import Call

T = TypeVar("T")


class ConfigOption(Struct, frozen=True):
    """An option, and its value."""

    key: str
    value: str


class ConfigSection(Struct, frozen=True):
    """A section."""

    name: str
    options: tuple[ConfigOption, ...]


class Config(Struct, frozen=True):
    """Sections of the configuration."""

    sections: tuple[ConfigSection, ...]


@AIRFLOW_API.endpoint("GET", "/config", permission=Permission.ADMINISTER, errors=(404, 406))
async def get_config(call: Call, section: str | None = None) -> Config | Response:
    """Show the configuration, as JSON or, if the client accepts only that, as the text of a file."""
    found = _options(call)
    if section is not None:
        found = {section: _named("section of the configuration", section, found)}
    return _answer(call, found)


@AIRFLOW_API.endpoint(
    "GET", "/config/section/{section}/option/{option}", permission=Permission.ADMINISTER, errors=(404, 406)
)
async def get_config_value(call: Call, section: str, option: str) -> Config | Response:
    """Show one option."""
    of_section = _named("section of the configuration", section, _options(call))
    return _answer(call, {section: {option: _named(f"option of [{section}]", option, of_section)}})


def _options(call: Call) -> Mapping[str, Mapping[str, str]]:
    if not call.context.settings.web.expose_config:
        raise NotAllowed("The configuration is not shown: an administrator has to set web.expose_config = true.")
    return list_options(call.context.settings)


def _named(kind: str, name: str, found: Mapping[str, T]) -> T:
    if name not in found:
        raise NotFound(kind, name, near_names(name, found))
    return found[name]


def _answer(call: Call, found: Mapping[str, Mapping[str, str]]) -> Config | Response:
    if wants_text(call):
        sections = ("\n".join((f"[{name}]", *(f"{key} = {value}" for key, value in options.items())))
                    for name, options in found.items())  # fmt: skip
        return PlainTextResponse("\n\n".join(sections) + "\n")
    return Config(
        tuple(
            ConfigSection(name, tuple(ConfigOption(*option) for option in options.items()))
            for name, options in found.items()
        )
    )
