"""Reads the settings: from flags, else from the environment, else from asynsched.toml, else the defaults.

With an airflow.cfg, or the setting like_airflow, Airflow's own configuration comes before the defaults.

`asynsched.toml` is in the working folder, or ASYNSCHED_CONFIG names the file. An unknown name, in the file or in a
variable that begins with ASYNSCHED_, is an error: a typing error must not be silent.
"""

import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from asynsched.cli.airflow_cfg import EQUIVALENTS, airflows_values, find_cfg, is_of_airflow
from asynsched.errors import SettingsError, did_you_mean
from asynsched.home import served_dags_folder
from asynsched.settings import (
    CONFIG_FILE,
    SECRET_OPTIONS,
    URL_OPTIONS,
    InvalidSetting,
    Settings,
    field_types,
    nearest_options,
    settings_from,
)
from asynsched.store.engines.urls import without_secrets

PREFIX = "ASYNSCHED_"
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
DEFAULT = "default"
HIDDEN = "***"


class Given(NamedTuple):
    """A value that an option was given, and where."""

    value: Any
    source: str


class Option(NamedTuple):
    """One setting.

    Attributes:
        name: Its place in the settings and in asynsched.toml, e.g. `parse.timeout`.
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
        """Its type in words, e.g. `a number above 0`, without upper bounds, which are beyond use."""
        return expectation(self.type, largest=False)

    def read(self, text: Any) -> Any:
        """Return the value that a text of the environment, or a value of asynsched.toml, means.

        Raises:
            ValueError: The text is not a value of this type; the message names the expected form.
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


class Configuration(NamedTuple):
    """The settings, and where each came from.

    Attributes:
        sources: Where each option's value comes from, by the option's name.
    """

    settings: Settings
    sources: dict[str, str]

    @property
    def of_airflow(self) -> list[str]:
        """The options that come from Airflow's configuration, each with its value and source."""
        return [
            f"{name} = {_shown(name, attrgetter(name)(self.settings))} ({source})"
            for name, source in self.sources.items()
            if name in EQUIVALENTS and self.settings.like_airflow and is_of_airflow(source)
        ]

    def located(self, problem: str) -> str:
        """Return a problem that begins with the names of options, with where these were set."""
        names = problem.partition(":")[0].split(", ")
        places = {name: source for name in names if (source := self.sources.get(name, DEFAULT)) != DEFAULT}
        if len(names) == 1:
            return problem + "".join(f" (set by {source})" for source in places.values())
        return "; ".join([problem, *(f"{name} is set by {source}" for name, source in places.items())])

    def rows(self) -> list[dict[str, Any]]:
        """Return every setting with its value and source; passwords in URLs are hidden."""
        values = {name: attrgetter(name)(self.settings) for name in self.sources}
        values["database"] = self.settings.database_url
        return [{"name": name, "value": _shown(name, values[name]), "source": self.sources[name]} for name in values]


def load_configuration(flags: Mapping[str, Any], environ: Mapping[str, str], folder: Path) -> Configuration:
    """Return the configuration of this process.

    Args:
        flags: Values by option name; None: not given.

    Raises:
        SettingsError: A value is wrong, a variable or a key of the file is unknown, or the file cannot be read. The
            message names the option and where it was set.
    """
    options = all_options()
    given = _from_file(options, environ, folder) | _from_environment(options, environ)
    for name, value in flags.items():
        flag = "argument DIR" if name == "dags_folder" else "flag --" + name.replace(".", "-").replace("_", "-")
        if value is not None:
            given[name] = Given(value, flag)
    given = _from_airflow(options, given, environ, folder) | given
    values: dict[str, Any] = {}
    for name, found in given.items():
        try:
            _put(values, name, options[name].read(found.value))
        except ValueError as exc:
            raise SettingsError(_located(name, str(exc), found)) from exc
    try:
        settings = settings_from(values)
    except InvalidSetting as exc:
        raise SettingsError(_located(exc.name, exc.problem, given.get(exc.name)) + _others(exc, given)) from exc
    sources = {name: given[name].source if name in given else DEFAULT for name in options}
    return Configuration(settings, sources)


def _from_airflow(
    options: Mapping[str, Option], given: Mapping[str, Given], environ: Mapping[str, str], folder: Path
) -> dict[str, Given]:
    """Return the values of Airflow's own configuration; none without an airflow.cfg, unless `like_airflow` is set."""

    def named(name: str) -> Any:
        if name not in given:
            return None
        try:
            return options[name].read(given[name].value)
        except ValueError as exc:
            raise SettingsError(_located(name, str(exc), given[name])) from exc

    home = folder / (named("home") or options["home"].default)
    dags_folder = named("dags_folder") or served_dags_folder(home)
    if dags_folder is None and not (environ.get("AIRFLOW_HOME") or environ.get("AIRFLOW_CONFIG")):
        dags_folder = options["dags_folder"].default
    try:
        cfg = find_cfg(named("airflow_cfg"), None if dags_folder is None else folder / dags_folder, environ)
    except InvalidSetting as exc:
        raise SettingsError(f"{exc} (set by {given[exc.name].source})") from exc
    is_wanted = named("like_airflow")
    if is_wanted is False or (is_wanted is None and cfg is None):
        return {}
    found = {name: Given(*value) for name, value in airflows_values(cfg, environ).items()}
    if cfg is not None:
        found |= {"airflow_cfg": Given(str(cfg), "the file is there"), "like_airflow": Given(True, f"there is {cfg}")}
    return found


def with_served_folder(configuration: Configuration) -> Configuration:
    """Return the configuration with the DAG folder that this home last served, unless another is named.

    So commands in another terminal use the folder of `asynsched up DIR`.
    """
    settings, sources = configuration
    served = served_dags_folder(settings.home_path)
    if served is None or not (sources["dags_folder"] == DEFAULT or is_of_airflow(sources["dags_folder"])):
        return configuration
    settings = msgspec.structs.replace(settings, dags_folder=str(served))
    return Configuration(settings, sources | {"dags_folder": f"last served from {settings.home}"})


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


def _from_environment(options: dict[str, Option], environ: Mapping[str, str]) -> dict[str, Given]:
    by_variable = {option.variable: option.name for option in options.values()}
    given: dict[str, Given] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in by_variable:
            if _is_of_service(variable, environ):
                continue
            near = [options[name].variable for name in nearest_options(variable.removeprefix(PREFIX), options)]
            raise SettingsError(f"environment variable {variable}: there is no such setting.{did_you_mean(near)}")
        given[by_variable[variable]] = Given(text, f"environment variable {variable}")
    return given


def _is_of_service(variable: str, environ: Mapping[str, str]) -> bool:
    """Return whether Kubernetes has set a variable, for a Service named e.g. `asynsched`; every Service has a host."""
    name = re.match(r"(\w+?)_(SERVICE_HOST|SERVICE_PORT|PORT)(_\w+)?$", variable)
    return name is not None and f"{name[1]}_SERVICE_HOST" in environ


def _from_file(options: dict[str, Option], environ: Mapping[str, str], folder: Path) -> dict[str, Given]:
    named = environ.get(CONFIG_VARIABLE)
    path = folder / (named or CONFIG_FILE)
    if not named and not path.exists():
        return {}
    import tomllib  # few commands need it

    try:
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text)
    except OSError as exc:
        where = f" (environment variable {CONFIG_VARIABLE})" if named else ""
        raise SettingsError(f"{path}: the file cannot be read{where}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path}: this is not TOML: {exc}") from exc
    given, lines = {}, _lines_of(text)
    for name, value in _leaves(content, options):
        place = _place(path, lines, name)
        if name not in options:
            raise SettingsError(f"{place}: there is no setting {name!r}.{did_you_mean(nearest_options(name, options))}")
        given[name] = Given(value, place)
    return given


_TABLE = re.compile(r"\s*\[{1,2}([^\[\]]+)\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"\s*([\w\-.\"' ]+?)\s*=")


def _lines_of(text: str) -> dict[str, int]:
    """Return the line of each table and option in a TOML file, by name. tomllib tells no lines."""
    table, is_in_text = "", False
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if is_in_text:
            pass
        elif header := _TABLE.match(line):
            table = _bare_name(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(f"{table}.{_bare_name(key[1])}".lstrip("."), number)
        is_in_text ^= (line.count('"""') + line.count("'''")) % 2 == 1
    return lines


def _place(path: Path, lines: Mapping[str, int], name: str) -> str:
    """Return the file and the line of an option, or of the table that has it."""
    while name and name not in lines:
        name = name.rpartition(".")[0]
    return f"{path}, line {lines[name]}" if name else str(path)


def _bare_name(name: str) -> str:
    """Return a name of TOML, which may have dots and quotes, without the quotes."""
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _leaves(content: Mapping[str, Any], options: Mapping[str, Option], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables; an empty table that names no group is a value, with an unknown name."""
    for key, value in content.items():
        name = prefix + key
        # Also within an unknown table: the name nearest to its first entry says more than that nearest to the table.
        if isinstance(value, dict) and (value or any(option.startswith(f"{name}.") for option in options)):
            yield from _leaves(value, options, f"{name}.")
        else:
            yield name, value


def _located(name: str, problem: str, given: Given | None) -> str:
    if given is None:
        return f"{name}: {problem}"
    return f"{name}: {problem}; it is {_shown(name, given.value)!r} (set by {given.source})"


def _others(invalid: InvalidSetting, given: Mapping[str, Given]) -> str:
    """Return where the other options that a problem names were set: one of those may be the wrong one."""
    named = [name for name in re.findall(r"\w[\w.]*\w", invalid.problem) if name in given and name != invalid.name]
    return "".join(f"; {name} is set by {given[name].source}" for name in dict.fromkeys(named))


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    group, separator, leaf = name.partition(".")
    if separator:
        _put(values.setdefault(group, {}), leaf, value)
    else:
        values[name] = value


def _shown(name: str, value: Any) -> Any:
    if name in SECRET_OPTIONS and value:
        return HIDDEN
    return without_secrets(value) if name in URL_OPTIONS and value and isinstance(value, str) else value
