"""Writes docs/reference from the code: `python -m tests.support.reference`. A test fails when it is outdated."""

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import click

import asynsched
from asynsched.authoring.dag import DagArguments
from asynsched.authoring.operators.base import BaseOperator
from asynsched.cli.app import COMMANDS, build_app
from asynsched.cli.configuration import Option, all_options
from asynsched.metrics.names import FIGURES

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
LINE_LENGTH = 110
GENERATED = "<!-- Written by `python -m tests.support.reference`. -->"

CLI_HEAD = """
# Commands

Every command works on a *home*, the folder of a scheduler's state: `./.asynsched`, unless `--home`, `ASYNSCHED_HOME` or
`asynsched.toml` names another one. Every command except `up` works whether or not a scheduler serves the home. A
command that only reads creates nothing; if there is no home, it fails and shows where it looked. If you name an unknown
DAG and no scheduler serves, the command reads the DAG folder first. It keeps the result in the home if there is one, or
if the command changes something.

RUN is a `run_id`, a unique prefix of one of the DAG's run_ids, or `latest` for the run that `runs list DAG` shows
first. An exact run_id takes precedence. A command that changes a run without asking (`--yes`) refuses a prefix.

On a terminal, a table fits the width: it has the most useful columns, leaves out those without room, names these, and
shows instants in the machine's time zone. In a file or a pipe, a table does not depend on the terminal: it has the
usual columns, one line for each row, and instants as ISO 8601 in UTC. `--wide` shows every column, with such instants.

`--output json` writes one JSON document with every field to standard output, and nothing else; a listing is a list of
objects. Notes, progress and errors go to standard error. Instants are ISO 8601 in UTC.

A command that asks for confirmation does nothing without a terminal, unless you give `--yes`.

Exit codes: 0 for success, 1 for a failure, which one line explains, and 2 for wrong usage. Ctrl-C ends a command with
130; it asks `asynsched up` to stop.

To complete commands, options, DAGs, runs and tasks, add one of these lines to the start-up file of your shell:

```sh
eval "$(_ASYNSCHED_COMPLETE=bash_source asynsched)"   # ~/.bashrc, bash 4.4 or newer
eval "$(_ASYNSCHED_COMPLETE=zsh_source asynsched)"    # ~/.zshrc
_ASYNSCHED_COMPLETE=fish_source asynsched | source    # ~/.config/fish/config.fish
```
"""
SETTINGS_HEAD = """
# Settings

A setting takes its value from the first of these sources that has one:

1. a flag of the command, if the setting has a flag;
2. an environment variable: `ASYNSCHED_` and the name in capitals, with `__` for the dot;
3. the file `asynsched.toml` in the working directory, or the file named by `ASYNSCHED_CONFIG`; groups are tables;
4. the default.

`asynsched config show` lists every setting, its value and its source. In an environment variable, a list is JSON, or
its items are separated by commas. Durations are in seconds. A variable that starts with `ASYNSCHED_` and names no
setting is an error, and so is an unknown key in the file; only the variables that Kubernetes sets for its Services are
passed over. Unless you name a DAG folder, commands other than `up` use the folder that the home served last.

An embedding program constructs `asynsched.Settings(...)` itself; asynsched reads nothing from its environment.

```toml
# asynsched.toml
parallelism = 8

[parse]
timeout = 120
readable = ["/srv/shared"]
```
"""
AUTHORING_HEAD = """
# Names for DAG files and programs

This page lists the names that you can import with `from asynsched import …`. Names, arguments and defaults are those of
Airflow 3's `airflow.sdk`, so to move a DAG file you change its import line;
[differences](../discussion/differences-from-airflow.md) lists the exceptions. The `**kwargs` of an operator are the
arguments of BaseOperator, and those of a sensor also the arguments of BaseSensorOperator. An unknown argument raises
TypeError, and an invalid one DagError, unless the text says otherwise.
"""


METRICS_HEAD = """
# Metrics

A scheduler reports these metrics if [monitor.metrics](settings.md) is `prometheus` or `opentelemetry`, or if a program
passes it `PrometheusMetrics` or `OpenTelemetryMetrics`. Names and labels are Airflow's where the meaning is the same;
names that start with `scheduler.loop` or `scheduler.stale` are asynsched's own.

In Prometheus, `ti.finish` is `airflow_ti_finish_total`, and a timer such as `task.duration` is a summary in seconds
(`airflow_task_duration_count`, `airflow_task_duration_sum`). In OpenTelemetry, `ti.finish` is `airflow.ti.finish`, and
a timer is a histogram in milliseconds. `monitor.metrics_prefix` changes the first word. Each scheduler reports its own
runs; add up the schedulers of one database.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {
        "cli.md": _page(CLI_HEAD, _commands(build_app(), COMMANDS, "asynsched")),
        "settings.md": _page(SETTINGS_HEAD, _settings()),
        "authoring.md": _page(AUTHORING_HEAD, _names()),
        "metrics.md": _page(METRICS_HEAD, _figures()),
    }


def _page(head: str, parts: Iterator[str]) -> str:
    return "\n".join([GENERATED, head.strip(), "", *parts]).rstrip() + "\n"


def _commands(group: click.Group, members: Any, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name, where in members.items():
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield f"## {path} {name}\n\n{command.help}\n"
            yield from _commands(command, where, f"{path} {name}")
        else:
            yield from _command(command, f"{path} {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"{'##' if path.count(' ') == 1 else '###'} {path}\n"
    arguments = [param.make_metavar(context) for param in command.params if isinstance(param, click.Argument)]
    yield f"```\n{' '.join([path, *arguments, '[OPTIONS]'])}\n```\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    for param in command.params:
        if isinstance(param, click.Option):
            names, text = param.get_help_record(context)
            yield f"- `{names}`: {text.replace('  [', ' [')}"
    yield ""


def _settings() -> Iterator[str]:
    groups: dict[str, list[Option]] = {}
    for option in all_options().values():
        groups.setdefault(option.name.rpartition(".")[0], []).append(option)
    for group, options in groups.items():
        yield f"## {f'[{group}]' if group else 'Scheduler'}\n"
        for option in options:
            default = "none" if option.default is None else f"`{_toml(option.default)}`"
            named = f"`{option.name}` (`{option.variable}`)"
            yield f"- {named}, {option.expected}, by default {default}.\n  {option.description}"
        yield ""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:.15g}"


def _figures() -> Iterator[str]:
    yield "| name | kind | labels | meaning |\n| --- | --- | --- | --- |"
    for name, figure in FIGURES.items():
        yield f"| `{name}` | {figure.kind} | {', '.join(figure.labels)} | {figure.meaning} |"


def _names() -> Iterator[str]:
    for name in sorted(dir(asynsched), key=str.lower):
        value = getattr(asynsched, name)
        if isinstance(value, str):
            continue
        yield f"## {name}\n"
        if signature := _signature(value):
            yield f"```python\n{name}{signature}\n```\n"
        yield _as_markdown(inspect.getdoc(value) or "") + "\n"
        if isinstance(value, type) and issubclass(value, Enum):
            yield ", ".join(f"`{member.value}`" for member in value) + "\n"


def _signature(value: Any) -> str:
    """Return arguments and defaults, on a line each if they are many. The text describes their types."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Enum | BaseException)):
        return ""
    signature = inspect.signature(_where_arguments_are(value))
    if value is not BaseOperator and isinstance(value, type) and value.__init__ is BaseOperator.__init__:
        return "(*, task_id, **kwargs)"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name not in {"self", "unknown"}
    ]
    text = str(inspect.Signature(parameters))
    if text == "(*args, **kwargs)":  # nothing of its own
        return ""
    return text if len(text) < LINE_LENGTH else "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + ")"


def _where_arguments_are(value: Any) -> Any:
    if value is asynsched.DAG:
        return DagArguments.__init__
    return value.__init__ if isinstance(value, type) else value


_SECTIONS = {"Args:": "Arguments", "Raises:": "Raises", "Returns:": "Returns", "Attributes:": "Attributes"}


def _as_markdown(text: str) -> str:
    """Return a docstring with its sections as lists, and its examples as code."""
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        name, separator, rest = line.strip().partition(":")
        if line in _SECTIONS:
            lines += [f"*{_SECTIONS[line]}*", ""]
            in_list = True
        elif in_list and line.startswith("    ") and not line.startswith("     ") and separator and " " not in name:
            lines.append(f"- `{name}`:{rest}")
        elif in_list and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            in_list = in_list and not line
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
