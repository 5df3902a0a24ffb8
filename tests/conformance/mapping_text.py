"""Writes DAG files, in the style of their authors, from the observed cases of task mapping."""

import json
from pathlib import Path

CASES = json.loads((Path(__file__).parent / "data" / "mapping.json").read_text())["cases"]
HEADER = """\
import json

from asynsched import DAG, AsynschedSkipException, BaseOperator, XComArg, task_group

NOT_GIVEN = "not given"
RECORD = []


class Echo(BaseOperator):
    template_fields = ("x", "y", "z")

    def __init__(self, *, x=NOT_GIVEN, y=NOT_GIVEN, z=NOT_GIVEN, returns=None, fail_at=(), skip_at=(), **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.z = x, y, z
        self.returns, self.fail_at, self.skip_at = returns or {}, fail_at, skip_at

    def execute(self, context):
        ti = context["ti"]
        given = {name: getattr(self, name) for name in self.template_fields if getattr(self, name) != NOT_GIVEN}
        RECORD.append((ti.task_id, ti.map_index, json.loads(json.dumps(given, default=list))))
        ti.xcom_push("args", given)
        if max(ti.map_index, 0) in self.fail_at:
            raise RuntimeError("fails")
        if max(ti.map_index, 0) in self.skip_at:
            raise AsynschedSkipException("skips")
        return self.returned(given)

    def returned(self, given):
        match self.returns:
            case {"value": value}:
                return value
            case {"arg": name}:
                return given[name]
            case {"args": _}:
                return given
            case {"sum": name}:
                return sum(given[name])
            case {"add": n}:
                return given["x"] + n
            case {"range": n}:
                return list(range(n if isinstance(n, int) else given[n]))


def double(value):
    return value * 2


def to_kwargs(value):
    return {"x": value, "y": value + 100}


def skip_odd(value):
    if value % 2:
        raise AsynschedSkipException("odd")
    return value


def none_if_neg(value):
    return None if value < 0 else value

"""
OPTIONS = {"rule": "trigger_rule"}
PASSED_ON = ("rule", "retries", "map_index_template", "returns", "fail_at", "skip_at")


def dag_id_of(case):
    return f"case-{case['id']}"


def dag_text(case, *, schedule=None):
    """Return the lines of a DAG file that define the case's DAG."""
    lines = [f"with DAG({dag_id_of(case)!r}, schedule={schedule!r}) as dag:", "    made = {}"]
    for item in case["tasks"]:
        lines += indented(group(item) if "group" in item else [task(item, "")])
    lines += [f"    made[{before!r}] >> made[{after!r}]" for before, after in case["edges"]]
    return "\n".join(lines) + "\n"


def task(item, prefix):
    """Return the statement that creates a task."""
    options = [f"task_id={item['id']!r}", "retry_delay=0"]
    options += [f"{OPTIONS.get(name, name)}={item[name]!r}" for name in PASSED_ON if name in item]
    options += [f"{name}={reference(value, prefix)}" for name, value in item.get("args", {}).items()]
    return f"made[{prefix + item['id']!r}] = Echo{mapped(item, ', '.join(options), prefix)}"


def mapped(item, options, prefix):
    if "expand" in item:
        arguments = ", ".join(f"{name}={reference(value, prefix)}" for name, value in item["expand"].items())
        return f".partial({options}).expand({arguments})"
    if "expand_kwargs" in item:
        return f".partial({options}).expand_kwargs({reference(item['expand_kwargs'], prefix)})"
    return f"({options})"


def group(item):
    name = item["group"]
    prefix = f"{name}."
    lines = [f"@task_group(group_id={name!r})", f"def {name}({', '.join(item['params'])}):"]
    lines += [f"    {task(inner, prefix)}" for inner in item["tasks"]]
    lines += [f"    made[{prefix + a!r}] >> made[{prefix + b!r}]" for a, b in item.get("edges", ())]
    if "args" in item:
        call = "(" + ", ".join(f"{key}={reference(value, '')}" for key, value in item["args"].items()) + ")"
    else:
        call = mapped(item, "", "").removeprefix(".partial()")
    return [*lines, f"made[{name!r}] = {name}{call}"]


def reference(value, prefix):
    """Return the expression of a reference; tasks of the same group have their short names."""
    if "literal" in value:
        text = repr(value["literal"])
    elif "group_arg" in value:
        text = value["group_arg"]
    elif "task" in value:
        name = value["task"]
        text = f"XComArg(dag.task_dict.get({prefix + name!r}) or dag.get_task({name!r}))"
    else:
        method = "zip" if "zip" in value else "concat"
        first, *others = (reference(part, prefix) for part in value[method])
        fill = [f"fillvalue={value['fillvalue']!r}"] if "fillvalue" in value else []
        text = f"{first}.{method}({', '.join([*others, *fill])})"
    return text + "".join(f".map({name})" for name in value.get("map", ()))


def indented(lines):
    return [f"    {line}" for line in lines]
