"""Operators that call a function in another Python: an existing one, or that of a virtual environment made for it."""

from __future__ import annotations

from abc import abstractmethod

from asynsched.authoring.exceptions import AsynschedException, AsynschedSkipException
from asynsched.authoring.operators import arguments
from asynsched.authoring.operators.bash import CommandOperator
from asynsched.authoring.operators.python import BranchByFunction, PythonOperator, keyword_arguments
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path
    from typing import Any, Unpack

    from asynsched.authoring.keywords import ForeignPythonKeywords, PythonKeywords
    from asynsched.authoring.running.context import Context

SERIALIZERS = ("pickle", "cloudpickle", "dill")
PLAIN_KEYS = (
    "ds", "ds_nodash", "expanded_ti_count", "inlets", "outlets", "run_id", "task_instance_key_str",
    "task_reschedule_count", "test_mode", "ts", "ts_nodash", "ts_nodash_with_tz",
)  # fmt: skip
DATE_KEYS = (
    "data_interval_end", "data_interval_start", "logical_date", "prev_data_interval_end_success",
    "prev_data_interval_start_success", "prev_end_date_success", "prev_start_date_success",
)  # fmt: skip
"""These are pendulum dates if the other Python has pendulum, and otherwise plain ones."""


class BaseForeignPythonOperator(PythonOperator, CommandOperator):
    """Calls a function in another Python. The function must be self-contained, with its imports inside.

    Arguments and result are passed with `serializer`. From the task's context, the function can receive values that do
    not depend on asynsched: dates, strings and params.
    """

    def __init__(
        self,
        *,
        serializer: str | None = None,
        string_args: Iterable[str] | None = None,
        expect_airflow: bool = True,
        skip_on_exit_code: int | Collection[int] | None = None,
        env_vars: dict[str, str] | None = None,
        inherit_env: bool = True,
        **kwargs: Unpack[PythonKeywords],
    ) -> None:
        super().__init__(**kwargs)
        _check_function(self.task_id, self.python_callable)
        self.serializer = serializer or SERIALIZERS[0]
        if self.serializer not in SERIALIZERS:
            raise DagError(f"task {self.task_id!r}: serializer must be one of {', '.join(SERIALIZERS)}")
        self.string_args = [str(item) for item in string_args or ()]
        self.expect_airflow = expect_airflow
        self.skip_on_exit_code = arguments.exit_codes(f"task {self.task_id!r}", skip_on_exit_code)
        self.env_vars = env_vars
        self.inherit_env = inherit_env

    @abstractmethod
    def call_function(self, context: Context) -> Any:
        """Find the other Python, and return the function's result there."""

    def run_python(self, python: str | Path, context: Context) -> Any:
        """Call the function in this Python, and return its result.

        Raises AsynschedSkipException if the exit code is in `skip_on_exit_code`, and AsynschedException if the call
        failed; the message is that of the function's exception.
        """
        import importlib
        import tempfile
        from pathlib import Path

        from asynsched.authoring.operators import foreign_call

        serializer = importlib.import_module(self.serializer)
        with tempfile.TemporaryDirectory(prefix="asynsched-call-") as scratch:
            folder = Path(scratch)
            given = {"args": tuple(self.op_args), "kwargs": self._keyword_arguments(python, context)}
            (folder / "input").write_bytes(_dumped(serializer, given, self.task_id))
            (folder / "function.py").write_text(function_source(self.python_callable), encoding="utf-8")
            (folder / "call.json").write_text(self._description(), encoding="utf-8")
            command = [str(python), str(Path(foreign_call.__file__)), scratch]
            exit_code = self.run_command(command, folder=scratch, env=self._environment())
            if exit_code in self.skip_on_exit_code:
                raise AsynschedSkipException(f"Process exited with code {exit_code}. Skipping.")
            if exit_code:
                error = folder / "error"
                detail = error.read_text(encoding="utf-8") if error.exists() else f"exit code {exit_code}"
                raise AsynschedException(f"The function failed in {python}: {detail}")
            return serializer.loads((folder / "output").read_bytes())

    def _description(self) -> str:
        import json

        return json.dumps({
            "module": self.python_callable.__module__,
            "function": self.python_callable.__name__,
            "serializer": self.serializer,
            "string_args": self.string_args,
        })  # fmt: skip

    def _environment(self) -> dict[str, str]:
        import os

        return {**(os.environ if self.inherit_env else {}), **(self.env_vars or {})}

    def _keyword_arguments(self, python: str | Path, context: Context) -> dict[str, Any]:
        available: dict[str, Any] = {name: context[name] for name in (*PLAIN_KEYS, *DATE_KEYS) if name in context}
        available["params"] = dict(context["params"])
        available["templates_dict"] = self.templates_dict
        found = keyword_arguments(self.python_callable, self.op_args, self.op_kwargs, available)
        dates = [name for name in DATE_KEYS if name in found and name not in self.op_kwargs]
        if dates and not _has_pendulum(python):
            found.update({name: _plain(found[name]) for name in dates})
        return found


class ExternalPythonOperator(BaseForeignPythonOperator):
    """Calls a function in an existing Python, such as that of a virtual environment.

    Args:
        python: The absolute path of the Python. (templated)
        python_callable: The function, made by `def`. It must be self-contained, with its imports inside.
        serializer: `pickle`, `cloudpickle` or `dill`; both Pythons must have it.
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        string_args: Strings that the function finds in the global `virtualenv_string_args`.
        templates_dict: A dict passed as `templates_dict`. (templated)
        templates_exts: Suffixes of strings that name template files.
        expect_airflow: Accepted as in Airflow; it has no effect.
        expect_pendulum: Accepted as in Airflow; whether the Python has pendulum is detected.
        skip_on_exit_code: The exit code, or codes, that skip the task.
        env_vars: Additional environment variables.
        inherit_env: Pass on the task's environment.
    """

    template_fields: Collection[str] = ("python", *PythonOperator.template_fields)

    def __init__(self, *, python: str, expect_pendulum: bool = False, **kwargs: Unpack[ForeignPythonKeywords]) -> None:
        super().__init__(**kwargs)
        if not python:
            raise DagError(f"task {self.task_id!r}: python must be the path of a Python interpreter")
        self.python = python
        self.expect_pendulum = expect_pendulum

    def call_function(self, context: Context) -> Any:
        from pathlib import Path

        path = Path(self.python)
        if not path.is_absolute() or not path.is_file():
            raise AsynschedException(
                f"task {self.task_id!r}: python must be the absolute path of a Python interpreter, not {path}"
            )
        return self.run_python(path, context)


class BranchExternalPythonOperator(BranchByFunction, ExternalPythonOperator):
    """Calls a function in another Python that returns the task_ids and group_ids to run."""


def function_source(function: Callable[..., Any]) -> str:
    """Return the source of a function without its decorators. Raises AsynschedException if it cannot be found."""
    import ast
    import inspect
    import textwrap

    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as exc:
        raise AsynschedException(f"the source of {function.__name__}() cannot be found: {exc}") from exc
    [definition] = ast.parse(source).body
    return "\n".join(source.splitlines()[definition.lineno - 1 :]) + "\n"


def _check_function(task_id: str, function: Any) -> None:
    import inspect

    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise DagError(f"task {task_id!r}: python_callable must be a function made by def, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise DagError(f"task {task_id!r}: {function.__name__}() must be an ordinary function, without yield or async")


def _dumped(serializer: Any, given: dict[str, Any], task_id: str) -> bytes:
    try:
        data: bytes = serializer.dumps(given)
    except Exception as exc:
        wrong = ", ".join(name for name, value in given["kwargs"].items() if not _can_dump(serializer, value))
        raise AsynschedException(
            f"task {task_id!r}: its arguments cannot be passed to another Python{': ' + wrong if wrong else ''} ({exc})"
        ) from exc
    return data


def _can_dump(serializer: Any, value: Any) -> bool:
    try:
        serializer.dumps(value)
    except Exception:  # noqa: BLE001 - a value's own code may raise anything
        return False
    return True


def _has_pendulum(python: str | Path) -> bool:
    import subprocess

    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pendulum') is None)"
    return subprocess.run([str(python), "-c", question], check=False).returncode == 0  # noqa: S603 - the task's Python


def _plain(moment: Any) -> dt.datetime | None:
    import datetime as dt

    if moment is None:
        return None
    return dt.datetime.fromisoformat(moment.isoformat())


CACHE_KEY_VARIABLE = "python_virtualenv_operator_cache_key"
"""The variable that is part of the cache key: changing it replaces all cached environments (Airflow's name)."""
MARKER = "install_complete_marker.json"


class PythonVirtualenvOperator(BaseForeignPythonOperator):
    """Calls a function in a virtual environment that is made for the call, and removed afterwards unless it is cached.

    Args:
        requirements: The packages to install: a list, or the content or path of a requirements file. (templated)
        python_version: The Python version, such as "3.12" for `python3.12` in the PATH; by default asynsched's own.
        system_site_packages: Make the packages of that Python available.
        pip_install_options: Additional options for `pip install`.
        index_urls: Package indexes; the first replaces the default one. (templated)
        index_urls_from_connection_ids: Connections for further package indexes with a user and password. (templated)
        venv_cache_path: A folder for cached environments, reused for equal requirements. (templated)
        kwargs: Arguments of ExternalPythonOperator, except `python`.
    """

    template_fields: Collection[str] = (
        "requirements", "index_urls", "index_urls_from_connection_ids", "venv_cache_path",
        *PythonOperator.template_fields,
    )  # fmt: skip
    template_ext = (".txt",)

    def __init__(
        self,
        *,
        requirements: str | Iterable[str] | None = None,
        python_version: str | None = None,
        system_site_packages: bool = True,
        pip_install_options: list[str] | None = None,
        index_urls: str | Collection[str] | None = None,
        index_urls_from_connection_ids: str | Collection[str] | None = None,
        venv_cache_path: str | os.PathLike[str] | None = None,
        **kwargs: Unpack[ForeignPythonKeywords],
    ) -> None:
        super().__init__(**kwargs)
        self.requirements = _texts(requirements)
        self.python_version = python_version
        self.system_site_packages = system_site_packages
        self.pip_install_options = pip_install_options
        self.index_urls = _texts(index_urls)
        self.index_urls_from_connection_ids = _texts(index_urls_from_connection_ids)
        self.venv_cache_path = venv_cache_path

    def call_function(self, context: Context) -> Any:
        import tempfile
        from pathlib import Path

        if self.venv_cache_path:
            return self.run_python(self._cached_environment(Path(self.venv_cache_path)), context)
        with tempfile.TemporaryDirectory(prefix="asynsched-venv-") as scratch:
            return self.run_python(self._make_environment(Path(scratch) / "venv"), context)

    def _cached_environment(self, parent: Path) -> Path:
        """Return the Python of the cached environment for these requirements; make it if it is missing."""
        import fcntl
        import hashlib
        import shutil

        wanted = self._fingerprint()
        folder = parent / f"venv-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
        parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / MARKER).exists():
                self.log.info("Using the environment in %s", folder)
                return folder / "bin" / "python"
            # Remove an unfinished environment.
            shutil.rmtree(folder, ignore_errors=True)
            python = self._make_environment(folder)
            (folder / MARKER).write_text(wanted, encoding="utf-8")
        return python

    def _fingerprint(self) -> str:
        import json

        from asynsched.authoring.connection import Variable

        return json.dumps({
            "requirements": self._requirements(),
            "pip_install_options": self.pip_install_options,
            "index_urls": self.index_urls,
            "cache_key": str(Variable.get(CACHE_KEY_VARIABLE, "")),
            "python_version": self.python_version,
            "system_site_packages": self.system_site_packages,
        })  # fmt: skip

    def _requirements(self) -> list[str]:
        wanted = [str(line) for line in self.requirements]
        if self.serializer != "pickle" and not self.system_site_packages and self.serializer not in wanted:
            wanted.append(self.serializer)
        return sorted(wanted)

    def _make_environment(self, folder: Path) -> Path:
        import sys

        python = f"python{self.python_version}" if self.python_version else sys.executable
        requirements = self._requirements()
        command = [python, "-m", "venv", str(folder)]
        if self.system_site_packages:
            command.append("--system-site-packages")
        if not requirements:
            command.append("--without-pip")
        self._run(command, folder.parent)
        if requirements:
            (folder / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-r", str(folder / "requirements.txt")]
            self._run([*install, *(self.pip_install_options or ())], folder)
        return folder / "bin" / "python"

    def _run(self, command: list[str], folder: Path) -> None:
        import os

        # Indexes may contain passwords, so they are not on the command line.
        urls = [*self.index_urls, *map(_index_url, self.index_urls_from_connection_ids)]
        indexes = {"PIP_INDEX_URL": urls[0], "PIP_EXTRA_INDEX_URL": " ".join(urls[1:])} if urls else {}
        self.log.info("Running command: %s", " ".join(command))
        try:
            code = self.run_command(command, folder=folder, env={**os.environ, **indexes})
        except FileNotFoundError as exc:
            raise AsynschedException(f"task {self.task_id!r}: there is no {command[0]}") from exc
        if code:
            raise AsynschedException(
                f"task {self.task_id!r}: the virtual environment could not be made: {self.last_line or code}"
            )


class BranchPythonVirtualenvOperator(BranchByFunction, PythonVirtualenvOperator):
    """Calls a function in a virtual environment that returns the task_ids and group_ids to run."""


def _texts(value: str | Iterable[str] | None) -> list[str]:
    if not value:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _index_url(conn_id: str) -> str:
    """Return the URL of a connection's package index, with its user and password."""
    from urllib.parse import quote, urlsplit, urlunsplit

    from asynsched.authoring.connection import Connection

    connection = Connection.get(conn_id)
    parts = urlsplit(connection.host or "")
    if not parts.scheme or not parts.netloc:
        raise AsynschedException(f"connection {conn_id!r}: its host must be the URL of a package index")
    user = quote(connection.login or "", safe="")
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    return urlunsplit(parts._replace(netloc=f"{user}{password}@{parts.netloc}" if user or password else parts.netloc))
