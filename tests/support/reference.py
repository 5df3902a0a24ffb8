"""Writes docs/reference from the code: `python -m tests.support.reference`. A test fails when it is outdated."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote, urlencode

import click
import msgspec

import asynsched
from asynsched.airflow.names import MOVED, MOVED_WHOLE, REFUSED, SERVED, UNUSABLE, WHOLE
from asynsched.authoring.dag import DagArguments
from asynsched.authoring.operators.base import BaseOperator
from asynsched.cli.app import COMMANDS, build_app
from asynsched.cli.configuration import Option, all_options
from asynsched.client.operation import IN_PATH
from asynsched.metrics.names import FIGURES
from asynsched.web.airflow_api import AIRFLOW_API
from asynsched.web.airflow_api.refusals import REFUSALS
from asynsched.web.openapi import document
from asynsched.web.own_api import OWN_API

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
objects, or of names. Notes, progress and errors go to standard error. Instants are ISO 8601 in UTC.

A command that asks for confirmation does nothing without a terminal, unless you give `--yes`.

Exit codes: 0 for success, 1 for a failure, which one line explains, and 2 for wrong usage; 3 if `asynsched preview`
finds a problem that `--fail-on` names. Ctrl-C ends a command with 130; it asks `asynsched up` to stop.

To complete commands, options, DAGs, runs and tasks, add one of these lines to the start-up file of your shell:

```sh
eval "$(_ASYNSCHED_COMPLETE=bash_source asynsched)"   # ~/.bashrc, bash 4.4 or newer
eval "$(_ASYNSCHED_COMPLETE=zsh_source asynsched)"    # ~/.zshrc
_ASYNSCHED_COMPLETE=fish_source asynsched | source    # ~/.config/fish/config.fish
```
"""
REST_HEAD = """
# Airflow's REST API

`asynsched up` serves the part of Airflow's REST API v2 that its clients use, below `/api/v2`: the same paths, fields,
status codes, paging, filters and errors as Airflow 3.3. `/api/v2/openapi.json` describes it. `asynsched web` serves it
beside schedulers that run elsewhere, and `Scheduler.web()` within another application.

## Sign in

A client sends `Authorization: Bearer TOKEN`. `POST /auth/token` with `{"username": …, "password": …}` answers with a
token that lasts `web.access_token_hours`; `asynsched tokens create` makes one that lasts longer.

```sh
asynsched users create ada --role operator
curl -s localhost:8080/auth/token -H 'Content-Type: application/json' \\
    -d '{"username": "ada", "password": "…"}'
```

What an endpoint needs is in the table: `view`, `operate` and `administer` are the rights of the roles viewer, operator
and admin; `nothing` is open to everybody. Where a path names a DAG, the right to that DAG counts, and lists leave out
DAGs that the user may not see.

## Clients

Tests run these clients, unchanged, against a serving asynsched: `apache-airflow-client` 3.3 (each of its calls),
`airflowctl` (each of its operations) and `astro-airflow-mcp` (each of its tools), so assistants work as well. A test
walks the published document by schemathesis, and another one compares its names with those of Airflow's client.

## What differs

- A list has 1,000 rows at most, one of questions to people 100, and is sorted by ten names at most. Lists leave out
  large values: variables and connections whose encrypted value is longer than 16 KiB, and `extra` of assets' events
  beyond that size, are null.
- Passwords, and values whose names sound secret, are `***`. Sent back, that mask keeps the stored value. Connections
  are not tested: `POST /connections/test` answers 403.
- Variables and connections can be sorted by what is not encrypted: their names, types and descriptions.
- A bulk request is one transaction: an action that does not fit what exists is reported, the others are done.
- `eventLogs` is the audit, with asynsched's names of actions, such as `dag.pause`. `jobs` are the schedulers. The
  scheduler also parses files and runs triggers, so `monitor/health` tells the same of all three.
- `config` answers 403 unless `web.expose_config` is set; the section `asynsched` has the settings.
- The only bundle is `dags-folder`. There are no teams: a request with a `team_name` is refused.
- Cursors lead forwards only: `previous_cursor` is null.
- One request clears or marks at most 100 runs, and `reset_dag_runs` cannot be false.
- A prefix pattern matches as it is; Airflow's leaves out signs at its end, so that `test_` finds `tests`.
"""
OWN_HEAD = """
# asynsched's REST API

`asynsched up`, `asynsched web` and `Scheduler.web()` serve this API below `/api/asynsched/v1`. Each request is a method
of [`Client`](../how-to/use-the-client.md), by the same name. `/api/asynsched/v1/openapi.json` describes it for
programs. [Airflow's API](rest.md) is beside it.

A request sends `Authorization: Bearer TOKEN`; `asynsched tokens create` makes a token. *Needs* names the right: view,
operate or administer, as the roles viewer, operator and admin have them. Where a path names a DAG, the right to that
DAG counts, and lists leave out DAGs that the user may not see.

```sh
asynsched tokens create --scope operate > token
curl -H "Authorization: Bearer $(cat token)" 'http://127.0.0.1:8080/api/asynsched/v1/runs?dag_id=etl&state=failed'
```

- Values of a `GET` or `DELETE` are in the path and the query string, where a name may be repeated for a list. Other
  requests have a JSON object as their body. An unknown name is an error, and so is a value of another type.
- Instants are ISO 8601 with an offset. Names are percent-encoded in a path.
- A list is a page: `items`, and `after`, which the next request gives back as `after` (null: it was the last page).
  `limit` is 1,000 at most; `order_by` names what to sort by, the first counts most, `-` before a name reverses it.
- A failed request has `detail`, a sentence, and a status: 400 for a wrong value, 401 without a valid token, 403 without
  the right, 404 if there is no such thing, 409 if the action does not fit the present state, 422 for a wrong type or an
  unknown name, 503 while the database cannot be reached.
"""
SETTINGS_HEAD = """
# Settings

A setting takes its value from the first of these sources that has one:

1. a flag of the command, if the setting has a flag;
2. an environment variable: `ASYNSCHED_` and the name in capitals, with `__` for the dot;
3. the file `asynsched.toml` in the working directory, or the file named by `ASYNSCHED_CONFIG`; groups are tables;
4. with `like_airflow`: a variable `AIRFLOW__SECTION__KEY`, then the `airflow.cfg`, then Airflow's default
   ([the options that have an equivalent](../how-to/move-from-airflow.md#4-settings-plugins-and-policies));
5. the default.

`asynsched config show` lists every setting, its value and its source. In an environment variable, a list is JSON, or
its items are separated by commas. Durations are in seconds, and paths may begin with `~`. A variable that starts with
`ASYNSCHED_` and names no setting is an error, and so is an unknown key in the file; only the variables that Kubernetes
sets for its Services are passed over. Unless you name a DAG folder, commands other than `up` use the folder that the
home served last.

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

AIRFLOW_HEAD = """
# Names of Airflow

A DAG file may import these names of Airflow; each is asynsched's equivalent. Names of packages that are installed from
the package index, such as `airflow.providers.http`, are the packages' own. [Names for DAG files](authoring.md)
describes what `airflow.sdk` has.
"""
_MOVED_HEAD = """
## Names of Airflow 2

These work, and the file gets a warning that says where Airflow 3 has them: in the module after the arrow, under the
name in parentheses where it differs.
"""
_REFUSED_HEAD = """
## Refused

The import of these is an error of the file, with the reason. A module's submodules are refused as well. A module of
`airflow.contrib` is refused with the class of a provider that replaces it.
"""

METRICS_HEAD = """
# Metrics

A scheduler reports these metrics if [monitor.metrics](settings.md) is `prometheus` or `opentelemetry`, or if a program
passes it `PrometheusMetrics` or `OpenTelemetryMetrics`. Names and labels are Airflow's where the meaning is the same;
names that start with `scheduler.logs`, `scheduler.loop` or `scheduler.stale` are asynsched's own.

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
        "airflow.md": _page(AIRFLOW_HEAD, _names_of_airflow()),
        "metrics.md": _page(METRICS_HEAD, _figures()),
        "rest.md": _page(REST_HEAD, _paths()),
        "own-rest.md": _page(OWN_HEAD, _requests(document(OWN_API, ""))),
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
    words = (
        [*arguments, "[OPTIONS]"]
        if command.context_settings.get("allow_interspersed_args", True)
        else ["[OPTIONS]", *arguments]
    )
    yield f"```\n{' '.join([path, *words])}\n```\n"
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


def _paths() -> Iterator[str]:
    yield "## Paths\n\n| method | path below `/api/v2` | | needs |\n| --- | --- | --- | --- |"
    for one in sorted(AIRFLOW_API.endpoints, key=lambda one: (one.path, one.method)):
        told = inspect.cleandoc(one.function.__doc__ or "").splitlines()[0].rstrip(".").replace("|", "\\|")
        yield f"| {one.method} | `{_shown(one.path)}` | {told} | {one.permission.name.lower()} |"
    yield "\n## Refused paths\n\nEach of these answers 501 with this sentence.\n"
    yield "| methods | path | |\n| --- | --- | --- |"
    for refusal in REFUSALS:
        yield f"| {', '.join(refusal.methods)} | `{_shown(refusal.path)}` | {refusal.sentence} |"


def _requests(found: dict[str, Any]) -> Iterator[str]:
    """Yield the requests of an OpenAPI document, by what they are about, and then its types."""
    needs = {one.name: one.permission.name.lower() for one in OWN_API.endpoints}
    parts: dict[str, list[str]] = {}
    for path, methods in found["paths"].items():
        for method, one in methods.items():
            text = _request(f"{method.upper()} {path}", one, needs[one["operationId"]], found["components"]["schemas"])
            parts.setdefault(_subject(path), []).extend(text)
    for subject, texts in parts.items():
        yield f"## {subject}\n"
        yield from texts
    yield "## Types\n"
    for name, schema in found["components"]["schemas"].items():
        if not name.startswith("Page_") and not name.endswith("Body"):
            yield f"### {name}\n\n{schema.get('description', '')}\n"
            yield from _fields(schema)
            yield ""


def _subject(path: str) -> str:
    """Return the heading of a path: the last part that names things of a DAG, or else the first one."""
    within = [part for part in path.split("/") if part in ("dags", "runs", "tasks", "backfills")]
    return (within[-1] if within else path.split("/")[1]).replace("-", " ").capitalize().replace("Dags", "DAGs")


def _request(name: str, one: dict[str, Any], needs: str, schemas: dict[str, Any]) -> Iterator[str]:
    answer = next((item for status, item in one["responses"].items() if status < "300"), {})
    answered = answer.get("content", {}).get("application/json", {})
    body = one.get("requestBody", {}).get("content", {}).get("application/json", {})
    yield f"### {name}\n\n{one['summary']}. `{one['operationId']}`; needs {needs}.\n"
    if more := one.get("description"):
        yield f"{more}\n"
    for parameter in one["parameters"]:
        if parameter["in"] == "path" and "description" not in parameter["schema"]:
            continue  # the path says it
        yield _field(
            parameter["name"], parameter["schema"], parameter["required"], "in the path" * (parameter["in"] == "path")
        )
    if body:
        yield from _fields(schemas[body["schema"]["$ref"].rpartition("/")[2]])
    yield f"\nAnswers with {_kind(answered['schema'])}.\n" if answered else ""
    yield from _example(name, one["parameters"], body.get("example"), answered.get("example"))


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    if "enum" in schema:
        yield f"One of {', '.join(f'`{value}`' for value in schema['enum'])}."
    for name, field in schema.get("properties", {}).items():
        yield _field(name, field, name in schema.get("required", ()))


def _field(name: str, schema: dict[str, Any], is_required: bool, where: str = "") -> str:
    """Return a line about a value. A default is not shown if it only says that the value may be left out."""
    default = schema.get("default")
    told = "" if is_required or default in (None, "", (), [], {}) else f"by default `{_json(default)}`"
    about = ", ".join(filter(None, (_kind(schema), where, told, "" if is_required or told else "optional")))
    described = schema.get("description") or next(
        (item["description"] for item in schema.get("anyOf", ()) if "description" in item), ""
    )
    described = re.sub(r"\bNone\b", "null", described)
    return f"- `{name}` ({about}){': ' if described else ''}{described}"


def _kind(schema: dict[str, Any]) -> str:
    """Return the type of a value in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name == "Page_str_":
            return "a page of strings"
        return (
            f"a page of [{name[5:-1]}](#{name[5:-1].lower()})"
            if name.startswith("Page_")
            else f"[{name}](#{name.lower()})"
        )
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(f"`{_json(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        item = schema.get("items")
        return f"a list of {_kind(item)}" if isinstance(item, dict) and item else "a list"
    if schema.get("format") == "date-time":
        return "instant"
    return str(schema.get("type", "any value"))


def _example(name: str, parameters: list[dict[str, Any]], body: Any, answer: Any) -> Iterator[str]:
    given = {one["name"]: one for one in parameters if "example" in one}
    method, _, path = name.partition(" ")
    path = IN_PATH.sub(lambda found: quote(str(given[found[1]]["example"]), safe=""), path)
    in_query = [(key, one["example"]) for key, one in given.items() if one["in"] == "query" and key != "map_index"]
    if not in_query and body is None and answer is None:
        return
    query = f"?{urlencode(in_query, doseq=True)}" if in_query else ""
    yield f"```http\n{method} /api/asynsched/v1{path}{query}"
    if body is not None:
        yield f"\n{_json(body)}"
    yield "```\n"
    if answer is not None:
        yield f"```json\n{msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()}\n```\n"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shown(path: str) -> str:
    return IN_PATH.sub(r"{\1}", path)


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
            # The members of an enum of texts are these texts; others are known by their names.
            texts = (member.value if isinstance(member, str) else member.name for member in value)
            yield ", ".join(f"`{text}`" for text in texts) + "\n"


def _names_of_airflow() -> Iterator[str]:
    served = {
        module: {name for texts in places.values() for name in _theirs(texts) if f"{module}.{name}" not in UNUSABLE}
        for module, places in SERVED.items()
    }
    for module, place in WHOLE.items():
        served.setdefault(module, set()).update(_own_names(import_module(place)))
    yield "## Modules\n"
    for module, found in sorted(served.items()):
        if public := sorted(
            (name for name in found if not name.startswith("_")), key=lambda name: (name.lower(), name)
        ):
            yield f"- `{module}`: {', '.join(public)}"
    yield f"\n{_MOVED_HEAD.strip()}\n"
    for module, places in sorted(MOVED.items()):
        yield f"- `{module}`: " + "; ".join(
            f"{', '.join(text.replace('=', ' (') + ')' * ('=' in text) for text in texts.split())} → `{place}`"
            for place, texts in places.items()
        )
    yield from (f"- `{module}`: all of `{place}`" for module, place in sorted(MOVED_WHOLE.items()))
    yield f"\n{_REFUSED_HEAD.strip()}\n"
    late = {name: f"{reason} (the import succeeds, the use is an error)" for name, reason in UNUSABLE.items()}
    yield from (f"- `{name}`: {reason}" for name, reason in sorted((REFUSED | late).items()))


def _own_names(module: ModuleType) -> Iterator[str]:
    """Yield the names of a module that is served whole, without what it imports from others."""
    for name, value in vars(module).items():
        is_import = inspect.ismodule(value) or getattr(value, "__module__", module.__name__) != module.__name__
        if not is_import and name not in ("TYPE_CHECKING", "annotations"):
            yield name


def _theirs(texts: str) -> list[str]:
    return [text.partition("=")[0] for text in texts.split()]


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
