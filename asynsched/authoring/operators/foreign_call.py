"""Calls one function in another Python. Run by its path: `PYTHON foreign_call.py FOLDER`.

That Python may be old and without any package, so this file imports only the standard library, and uses only features
of Python 3.7. It reads `call.json`, `function.py` and `input` in the folder, and writes `output` or `error`.
"""

import importlib
import json
import sys
import traceback
import types
from pathlib import Path


def call(folder: str) -> int:
    """Call the function, and write its result or exception to the folder. Returns the exit code."""
    described = json.loads(_read(folder, "call.json"))
    # Pickled objects name the function's module: here a module with only that function takes its place.
    module = sys.modules[described["module"]] = types.ModuleType(described["module"])
    module.__dict__["virtualenv_string_args"] = described["string_args"]
    source = str(Path(folder, "function.py"))
    try:
        exec(compile(_read(folder, "function.py"), source, "exec"), module.__dict__)  # noqa: S102 - it is the task's code
        serializer = importlib.import_module(described["serializer"])
        given = serializer.loads(_read(folder, "input"))
        value = module.__dict__[described["function"]](*given["args"], **given["kwargs"])
        _write(folder, "output", serializer.dumps(value))
    except Exception as exc:  # noqa: BLE001 - user code may raise anything
        traceback.print_exc()
        _write(folder, "error", f"{type(exc).__name__}: {exc}".encode("utf-8", "replace"))
        return 1
    return 0


def _read(folder: str, name: str) -> bytes:
    return Path(folder, name).read_bytes()


def _write(folder: str, name: str, data: bytes) -> None:
    Path(folder, name).write_bytes(data)


if __name__ == "__main__":
    # Remove the folder of this file, so that its other modules are not imported by mistake.
    sys.path.pop(0)
    sys.exit(call(sys.argv[1]))
