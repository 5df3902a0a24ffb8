"""The end of a command's process, for every destination of its output."""

import signal
import subprocess
import sys
from io import StringIO
from textwrap import dedent

import click
import pytest

from asynsched.cli.command import errors_in_one_line


@pytest.mark.parametrize(("arguments", "code"), [("--version", 0), ("no-such-command", 2)])
@pytest.mark.parametrize("elsewhere", ["", ">&-", "2>&-", ">&- 2>&-"])
def test_a_command_ends_with_its_exit_code_though_its_output_is_closed(tmp_path, arguments, code, elsewhere):
    line = f"{sys.executable} -m asynsched {arguments} {elsewhere}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    if not elsewhere:
        assert done.stdout.count("\n") + done.stderr.count("\n") >= 1


def test_a_command_whose_output_has_no_room_says_so_in_one_line(tmp_path):
    line = f"{sys.executable} -m asynsched config show >/dev/full"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: The output cannot be written: No space left on device\n")


def test_a_command_interrupted_during_its_import_shows_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "-m", "asynsched", "version"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_interruption_while_python_ends_keeps_the_exit_code_silently():
    program = """
        import atexit, signal, sys
        from asynsched import cli

        def run():
            cli.begin()
            cli.live_on()
            atexit.register(signal.raise_signal, signal.SIGINT)
            sys.exit(1)

        cli.run_command = run
        cli.main()
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_an_interrupted_command_says_so_and_ends_with_its_own_exit_code(capsys):
    with pytest.raises(click.exceptions.Exit) as ended, errors_in_one_line():
        signal.raise_signal(signal.SIGINT)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "Error: Interrupted.\n"


def test_a_file_that_the_system_refuses_is_named_in_one_line(capsys, tmp_path):
    with pytest.raises(click.exceptions.Exit), errors_in_one_line():
        (tmp_path / "nowhere" / "file").read_bytes()
    assert capsys.readouterr().err == f"Error: {tmp_path}/nowhere/file: No such file or directory.\n"


def test_an_interrupted_question_differs_from_one_answered_with_no(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", StringIO("n\n"))
    with pytest.raises(click.Abort), errors_in_one_line():
        click.confirm("Delete it?", abort=True, err=True)
    with pytest.raises(click.Abort), errors_in_one_line():
        click.confirm("Delete it?", abort=True, err=True)  # there is no more input
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(click.exceptions.Exit) as ended, errors_in_one_line():
        click.confirm("Delete it?", abort=True, err=True)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err.endswith("\nError: Interrupted.\n")
