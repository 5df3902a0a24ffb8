"""Virtual environments, and the script with which a function runs in another Python, such as that of a container."""

from __future__ import annotations

import os
from importlib import import_module

from asynsched.airflow.processes import execute_in_subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SCRIPT = """\
import sys

import {pickling_library}

{python_callable_source}

given = {{"args": [], "kwargs": {{}}}}
if {has_arguments}:
    with open(sys.argv[1], "rb") as file:
        given = {pickling_library}.load(file)
if {has_string_args}:
    with open(sys.argv[3]) as file:
        virtualenv_string_args = [line.strip() for line in file]
try:
    result = {python_callable}(*given["args"], **given["kwargs"])
except Exception as exc:
    with open(sys.argv[4], "w") as file:
        file.write(str(exc))
    raise
with open(sys.argv[2], "wb") as file:
    if result is not None:
        {pickling_library}.dump(result, file)
"""


class _Library:
    """A module that is imported when it is used."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


SERIALIZERS = {name: _Library(name) for name in ("pickle", "dill", "cloudpickle")}
"""The libraries that can write a function's arguments, by name."""


def prepare_virtualenv(
    venv_directory: str,
    python_bin: str,
    system_site_packages: bool,
    requirements: list[str] | None = None,
    requirements_file_path: str | None = None,
    pip_install_options: list[str] | None = None,
    index_urls: list[str] | None = None,
) -> str:
    """Make a virtual environment, install packages into it, and return the path of its Python.

    Args:
        venv_directory: The folder of the environment.
        python_bin: The Python that the environment is made of: a path, or a command in the PATH.
        system_site_packages: Make the packages of that Python available.
        requirements: The packages to install.
        requirements_file_path: A requirements file, instead.
        pip_install_options: Additional options for `pip install`.
        index_urls: Package indexes; the first replaces the default one. An empty list stands for no index.

    Raises:
        ValueError: Both requirements and a requirements file are given.
        CalledProcessError: A command fails; its output is in the log.
    """
    if requirements is not None and requirements_file_path is not None:
        raise ValueError("give requirements or requirements_file_path, not both")
    site_packages = ["--system-site-packages"] if system_site_packages else []
    execute_in_subprocess([python_bin, "-m", "venv", *site_packages, venv_directory])
    python = f"{venv_directory}/bin/python"
    wanted = ["-r", requirements_file_path] if requirements_file_path else requirements
    if wanted:
        command = [python, "-m", "pip", "install", *(pip_install_options or ()), *wanted]
        execute_in_subprocess(command, env={**os.environ, **_indexes(index_urls)})
    return python


def _indexes(urls: list[str] | None) -> dict[str, str]:
    # Indexes may contain passwords, so they are not on the command line.
    if urls is None:
        return {}
    return {"PIP_INDEX_URL": urls[0], "PIP_EXTRA_INDEX_URL": " ".join(urls[1:])} if urls else {"PIP_NO_INDEX": "1"}


def write_python_script(
    jinja_context: dict[str, Any], filename: str, render_template_as_native_obj: bool = False
) -> None:
    """Write a script that calls a function.

    Its arguments are four files: the pickled arguments of the function, for its pickled result, with its string
    arguments, and for the message of its exception.

    Args:
        jinja_context: The call: `python_callable`, `python_callable_source`, `pickling_library`, `op_args`,
            `op_kwargs`, and `string_args_global`, which is False if the third file is not to be read.
        filename: The script.
        render_template_as_native_obj: Accepted as in Airflow; it has no effect.
    """
    del render_template_as_native_obj
    text = _SCRIPT.format(
        python_callable=jinja_context["python_callable"],
        python_callable_source=jinja_context["python_callable_source"],
        pickling_library=jinja_context["pickling_library"],
        has_arguments=bool(jinja_context["op_args"] or jinja_context["op_kwargs"]),
        has_string_args=bool(jinja_context.get("string_args_global", True)),
    )
    with open(filename, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib would be loaded for this
        file.write(text)
