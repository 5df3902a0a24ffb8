"""What a DAG file is told that imports from Airflow, or a name of Airflow's that asynsched does not have."""

import ast
import difflib
import importlib
import linecache
import sys
from types import TracebackType

_PLACES = {"timezone": "asynsched.authoring.timezone", "macros": "asynsched.authoring.macros"}
"""Modules of functions, which are no names of the package itself."""
_ADVICE = {"days_ago": "give start_date a date, such as datetime(2026, 1, 1)"}


def no_airflow(frames: list[TracebackType]) -> str:
    """Return what to do about an import that fails because Airflow is not installed."""
    node = _import_at(frames[-1]) if frames else None
    if isinstance(node, ast.ImportFrom) and node.module:
        return instead_of(node.module, [alias.name for alias in node.names])
    if isinstance(node, ast.Import) and any(alias.name in ("airflow", "airflow.sdk") for alias in node.names):
        return "import the same names from asynsched"
    return "import from asynsched what it has of these names"


def instead_of(module: str, names: list[str]) -> str:
    """Return what to do about `from module import names`, where the module is one of Airflow's."""
    place = _PLACES.get(module.rpartition(".")[2], "asynsched")
    known = dir(importlib.import_module(place))
    here = [name for name in map(_renamed, names) if name in known or name in (*_PLACES, "*")]
    missing = [name for name in names if _renamed(name) not in here]
    advice = [f"import {'the same names' if here == names else ', '.join(here)} from {place}"] if here else []
    advice += [_said(name, _ADVICE.get(name, "")) for name in missing]  # no near names: these are rightly spelt
    if missing and module.startswith("airflow.providers."):
        advice.append("providers of Airflow need Airflow itself")
    return "; ".join(advice)


def missing_name(name: str) -> str:
    """Return what to say of a name that asynsched does not have: what it is called here, or the near ones."""
    known = dir(sys.modules["asynsched"])
    renamed = _renamed(name)
    near = [renamed] if renamed in known else difflib.get_close_matches(name, known)
    return _said(name, _ADVICE.get(name) or (f"did you mean {' or '.join(near)}?" if near else ""))


def _said(name: str, hint: str) -> str:
    return f"asynsched has no name {name!r}" + (f"; {hint}" if hint else "")


def _renamed(name: str) -> str:
    return name.replace("Dataset", "Asset").replace("Airflow", "Asynsched")


def _import_at(frame: TracebackType) -> ast.stmt | None:
    """Return the import statement that a frame is in; None where the source does not tell."""
    code = frame.tb_frame.f_code
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, frame.tb_frame.f_globals)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno <= frame.tb_lineno <= (node.end_lineno or 0):
            return node
    return None
