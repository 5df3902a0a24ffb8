"""Calls one function in a Python that is not asynsched's own. Run by its path: `PYTHON foreign_call.py FOLDER`.

It may be an older Python without any package, so this file imports nothing but the standard library, and uses nothing
that Python 3.7 does not have. The folder has `call.json`, `function.py` and `input`; it gets `output`, or `error`.
"""

import importlib
import json
import sys
import traceback
import types
from pathlib import Path


def call(folder: str) -> int:
    """Call the function, and write down what it returned or raised. Returns the exit code."""
    described = json.loads(_read(folder, "call.json"))
    # What is pickled names the module that the function is from: here that is made of the function alone.
    module = sys.modules[described["module"]] = types.ModuleType(described["module"])
    module.__dict__["virtualenv_string_args"] = described["string_args"]
    source = str(Path(folder, "function.py"))
    try:
        exec(compile(_read(folder, "function.py"), source, "exec"), module.__dict__)  # noqa: S102 - it is the task's code
        serializer = importlib.import_module(described["serializer"])
        given = serializer.loads(_read(folder, "input"))
        value = module.__dict__[described["function"]](*given["args"], **given["kwargs"])
        _write(folder, "output", serializer.dumps(value))
    except Exception as exc:  # noqa: BLE001 - whatever user code raises
        traceback.print_exc()
        _write(folder, "error", f"{type(exc).__name__}: {exc}".encode("utf-8", "replace"))
        return 1
    return 0


def _read(folder: str, name: str) -> bytes:
    return Path(folder, name).read_bytes()


def _write(folder: str, name: str, data: bytes) -> None:
    Path(folder, name).write_bytes(data)


if __name__ == "__main__":
    # The folder of this file: what is beside it is not to be imported by mistake.
    sys.path.pop(0)
    sys.exit(call(sys.argv[1]))
