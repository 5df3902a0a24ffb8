"""PythonVirtualenvOperator: calls a function in a virtual environment that is made for it."""

from __future__ import annotations

from asynsched.authoring.exceptions import AsynschedException
from asynsched.authoring.operators.branch import BaseBranchOperator
from asynsched.authoring.operators.foreign_python import BaseForeignPythonOperator
from asynsched.authoring.operators.python import PythonOperator
from asynsched.authoring.subprocesses import LoggedProcess
from asynsched.errors import DagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable
    from pathlib import Path
    from typing import Any

    from asynsched.authoring.running.context import Context

CACHE_KEY_VARIABLE = "python_virtualenv_operator_cache_key"
"""Variable whose change makes cached environments be made anew (Airflow's name)."""
MARKER = "install_complete_marker.json"


class PythonVirtualenvOperator(BaseForeignPythonOperator):
    """Calls a function in a virtual environment that is made for it, and removed afterwards unless it is cached.

    Args:
        requirements: What `pip` is to install: a list, or the text or path of a requirements file. (templated)
        python_version: Version of the Python, such as "3.12": `python3.12` must be there. By default asynsched's own.
        system_site_packages: Whether the packages of that Python are seen.
        pip_install_options: Additional options of `pip install`.
        index_urls: Package indexes, the first in place of the default one. (templated)
        index_urls_from_connection_ids: Connections that name further ones, with user and password. (templated)
        venv_cache_path: Folder to keep environments in; the same requirements use the same one. (templated)
        kwargs: The other arguments are those of ExternalPythonOperator.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if python_version is not None and not isinstance(python_version, str):
            raise DagError(f"task {self.task_id!r}: python_version must be a text such as '3.12'")
        self.requirements = _texts(requirements)
        self.python_version = python_version
        self.system_site_packages = system_site_packages
        self.pip_install_options = pip_install_options
        self.index_urls = _texts(index_urls)
        self.index_urls_from_connection_ids = _texts(index_urls_from_connection_ids)
        self.venv_cache_path = venv_cache_path

    def call_in(self, context: Context) -> Any:
        import tempfile
        from pathlib import Path

        if self.venv_cache_path:
            return self.run_python(self._cached_environment(Path(self.venv_cache_path)), context)
        with tempfile.TemporaryDirectory(prefix="asynsched-venv-") as scratch:
            return self.run_python(self._make_environment(Path(scratch) / "venv"), context)

    def _cached_environment(self, parent: Path) -> Path:
        """Return the Python of an environment for these requirements, making it if nobody has."""
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
            # What is there was left half done.
            shutil.rmtree(folder, ignore_errors=True)
            python = self._make_environment(folder)
            (folder / MARKER).write_text(wanted, encoding="utf-8")
        return python

    def _fingerprint(self) -> str:
        import json

        from asynsched.authoring.variable import Variable

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

        # Indexes may have passwords, so they are not on the command line.
        urls = [*self.index_urls, *map(_index_url, self.index_urls_from_connection_ids)]
        indexes = {"PIP_INDEX_URL": urls[0], "PIP_EXTRA_INDEX_URL": " ".join(urls[1:])} if urls else {}
        self._process = LoggedProcess(self.log)
        self.log.info("Running command: %s", " ".join(command))
        try:
            code = self._process.run(command, folder=folder, env={**os.environ, **indexes})
        except FileNotFoundError as exc:
            raise AsynschedException(f"task {self.task_id!r}: there is no {command[0]}") from exc
        if code:
            raise AsynschedException(
                f"task {self.task_id!r}: its environment could not be made: {self._process.last_line or code}"
            )


class BranchPythonVirtualenvOperator(BaseBranchOperator, PythonVirtualenvOperator):
    """Calls, in a virtual environment, a function that returns the task_ids, or group_ids, to follow."""

    def choose_branch(self, context: Context) -> str | Iterable[str] | None:
        chosen: str | Iterable[str] | None = PythonVirtualenvOperator.execute(self, context)
        return chosen


def _texts(value: str | Iterable[str] | None) -> list[str]:
    if not value:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _index_url(conn_id: str) -> str:
    """Return the URL of the package index that a connection describes, with its user and password."""
    from urllib.parse import quote, urlsplit, urlunsplit

    from asynsched.authoring.connection import Connection

    connection = Connection.get(conn_id)
    parts = urlsplit(connection.host or "")
    if not parts.scheme or not parts.netloc:
        raise AsynschedException(f"connection {conn_id!r}: its host must be the URL of a package index")
    user = quote(connection.login or "", safe="")
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    return urlunsplit(parts._replace(netloc=f"{user}{password}@{parts.netloc}" if user or password else parts.netloc))
