"""An environment has what was asked for; the script for another Python calls the function with its arguments."""

import pickle
import subprocess
import sys
import zipfile

import pytest

from asynsched.airflow.python_virtualenv import prepare_virtualenv, write_python_script

SOURCE = """
def adds(left, right=1):
    "Adds {these}."
    if right == 0:
        raise ValueError("no zero")
    return None if right == -1 else [left + right, globals().get("virtualenv_string_args")]
"""


@pytest.mark.parametrize(
    ("arguments", "string_args_global", "result"),
    [
        ({"args": [2], "kwargs": {"right": 3}}, True, [5, ["one", "two"]]),
        ({"args": [2], "kwargs": {}}, False, [3, None]),
        ({"args": [2, -1], "kwargs": {}}, False, None),
        ({"args": [2, 0], "kwargs": {}}, False, ValueError),
    ],
)
def test_a_script_calls_its_function_and_keeps_result_or_error(tmp_path, arguments, string_args_global, result):
    paths = [tmp_path / name for name in ("input", "output", "strings", "error")]
    paths[0].write_bytes(pickle.dumps(arguments))
    paths[2].write_text("one\ntwo\n")
    context = {
        "op_args": arguments["args"], "op_kwargs": arguments["kwargs"], "pickling_library": "pickle",
        "python_callable": "adds", "python_callable_source": SOURCE, "expect_airflow": True,
        "string_args_global": string_args_global,
    }  # fmt: skip
    write_python_script(context, str(tmp_path / "script.py"))
    done = subprocess.run([sys.executable, tmp_path / "script.py", *paths], capture_output=True, check=False)
    if result is ValueError:
        assert (done.returncode, paths[3].read_text()) == (1, "no zero")
    else:
        assert done.returncode == 0, done.stderr
        assert (paths[1].read_bytes() and pickle.loads(paths[1].read_bytes())) == (result or b"")


def test_an_environment_has_the_packages_that_were_asked_for(tmp_path):
    wheel = tmp_path / "answer-42-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: answer\nVersion: 42\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("answer.py", "")
        archive.writestr("answer-42.dist-info/METADATA", metadata)
        archive.writestr("answer-42.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("answer-42.dist-info/RECORD", "")
    folder = str(tmp_path / "venv")
    python = prepare_virtualenv(
        folder, sys.executable, False, ["answer==42"], None, ["--find-links", str(tmp_path)], []
    )
    assert python == f"{folder}/bin/python"
    subprocess.run([python, "-c", "import answer"], check=True)


def test_an_environment_takes_its_packages_from_the_given_indexes(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        "asynsched.airflow.python_virtualenv.execute_in_subprocess", lambda *a, **k: given.append((a, k))
    )
    prepare_virtualenv("venv", "python3.11", True, requirements_file_path="a.txt", index_urls=["https://me:key@a", "b"])
    (made, _), (((install,), environment)) = given
    assert made == (["python3.11", "-m", "venv", "--system-site-packages", "venv"],)
    assert install == ["venv/bin/python", "-m", "pip", "install", "-r", "a.txt"]
    assert environment["env"].items() >= {("PIP_INDEX_URL", "https://me:key@a"), ("PIP_EXTRA_INDEX_URL", "b")}
    with pytest.raises(ValueError, match="not both"):
        prepare_virtualenv("venv", "python3.11", True, ["a"], "a.txt")
