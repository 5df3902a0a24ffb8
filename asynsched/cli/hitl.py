"""`asynsched tasks awaiting` and `asynsched tasks answer`: the questions of tasks, and people's answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from asynsched.cli.command import command, completes, index_option, task_arguments
from asynsched.cli.output import Done, Listing, note
from asynsched.cli.session import Session, actor
from asynsched.errors import AsynschedError
from asynsched.keys import TaskInstanceKey, instance_name
from asynsched.queries.dags import get_dag
from asynsched.queries.hitl import QuestionFilter, WaitingQuestion, answer, list_waiting
from asynsched.queries.runs import run_named
from asynsched.queries.task_instances import task_named
from asynsched.store.schema import HITLRow

COLUMNS = WaitingQuestion.__struct_fields__
USUAL_COLUMNS = ("dag_id", "run_id", "task_id", "map_index", "subject", "options", "since", "default_at")
SPARE_COLUMNS = ("default_at", "since", "map_index")


@command("awaiting", tables=True)
@click.argument("dag_id", metavar="[DAG]", required=False, shell_complete=completes("dag"))
def tasks_awaiting(session: Session, dag_id: str | None) -> Listing:
    """List the tasks that wait for a person's answer, of one DAG or of all, the longest wait first.

    `default_at`: when the time is over; then the task goes on with its `defaults`, or fails if it has none.
    """
    if dag_id is not None:
        session.read(get_dag, dag_id)
    wanted = QuestionFilter(equal={} if dag_id is None else {"dag_id": dag_id})
    rows = session.pages(list_waiting, wanted, order_by=("created_at",))
    return Listing(COLUMNS, rows, "No task waits for an answer.", usual=USUAL_COLUMNS, spare=SPARE_COLUMNS)


@command("answer")
@task_arguments
@index_option
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="X",
    help="An option; may be given several times if the task allows several.",
)
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="The value of a param: JSON, or a text.")
@click.option("--user", metavar="NAME", help="Who answers, if not the user of this command.")
def tasks_answer(
    session: Session, dag_id: str, run_id: str, task_id: str, map_index: int, options: tuple[str, ...],
    params: tuple[str, ...], user: str | None,
) -> Done:  # fmt: skip
    """Answer the question of a task, which then goes on. `asynsched tasks awaiting` lists the questions.

    --option may be left out where there is only one. A param that is left out keeps its default.
    """
    run = session.read(run_named, dag_id, run_id)
    session.read(task_named, run, task_id, map_index)
    run_id, entered = run.run_id, dict(_split(param) for param in params)
    name = user or actor().partition("@")[0]
    key = TaskInstanceKey(*run.key, task_id, map_index)
    asked = session.act(answer, key, lambda asked: read_answer(asked, options, entered), user=name, now=session.now())
    if not session.has_scheduler():
        note("No scheduler serves now: the task goes on when one does.")
    chosen, values = read_answer(asked, options, entered)
    sentence = f"{name} answered {instance_name(task_id, map_index)} of {run_id}: {', '.join(chosen)}."
    return Done(
        sentence, {"task_id": task_id, "map_index": map_index, "chosen_options": chosen, "params_input": values}
    )


def _split(param: str) -> tuple[str, str]:
    name, is_given, value = param.partition("=")
    if not (name and is_given):
        raise click.BadParameter(f"{param!r} is not NAME=VALUE", param_hint="--param")
    return name, value


def read_answer(asked: HITLRow, options: Sequence[str], entered: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Return the chosen options, and a value for each param. Raises AsynschedError if they do not fit the question."""
    chosen = list(dict.fromkeys(options)) or (asked.options if len(asked.options) == 1 else [])
    offered = ", ".join(asked.options)
    if not chosen:
        raise AsynschedError(f"Give an --option; there are: {offered}.")
    for option in chosen:
        if option not in asked.options:
            raise AsynschedError(f"{option!r} is not among the options: {offered}.")
    if len(chosen) > 1 and not asked.multiple:
        raise AsynschedError(f"Give one --option, not {len(chosen)}: the task takes a single one of {offered}.")
    for name in entered:
        if name not in asked.params:
            known = f"its params are {', '.join(asked.params)}" if asked.params else "it has none"
            raise AsynschedError(f"The task asks for no param {name!r}: {known}.")
    values = {name: _value_of(name, param, entered.get(name)) for name, param in asked.params.items()}
    return chosen, values


def _value_of(name: str, param: Mapping[str, Any], text: str | None) -> Any:
    from asynsched.authoring.exceptions import ParamValidationError
    from asynsched.authoring.params import NOTSET, Param  # most answers have no params

    schema = param.get("schema") or {}
    default = param.get("value")
    checked = Param(NOTSET if default is None and not _allows(schema, "null") else default, schema=schema)
    try:
        if text is None:
            return checked.resolve()
        for value in _readings(text, schema):
            if checked.resolve(value, suppress_exception=True) == value:
                return value
        return checked.resolve(next(iter(_readings(text, schema))))
    except ParamValidationError as exc:
        raise AsynschedError(f"--param {name}: {exc}.") from exc


def _readings(text: str, schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a text may stand for: the text itself first if the schema wants strings, else JSON."""
    try:
        read = [json.loads(text)]
    except ValueError:
        read = []
    return [text, *read] if _allows(schema, "string") and "type" in schema else [*read, text]


def _allows(schema: Mapping[str, Any], kind: str) -> bool:
    kinds = schema.get("type", kind if not schema else ())
    return kind == kinds or (isinstance(kinds, list) and kind in kinds)
