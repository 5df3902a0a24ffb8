"""The map of the command line is true: every command is where it says, under its name, with a help text."""

import click
import pytest
from click.testing import CliRunner

from asynsched.cli.app import COMMANDS, COMMANDS_HERE, GROUP_HELP, WITHOUT_COUNTERPART, build_app


def test_every_command_is_where_the_map_says():
    app = build_app()
    context = click.Context(app)
    assert set(GROUP_HELP) == {name for name, where in COMMANDS.items() if not isinstance(where, str)}
    for name, where in COMMANDS.items():
        found = app.get_command(context, name)
        members = {name: found} if isinstance(where, str) else {key: found.get_command(context, key) for key in where}
        for key, member in members.items():
            assert member.name == key
            assert member.help, key
            assert [
                option.name for option in member.params if isinstance(option, click.Option) and not option.help
            ] == []


@pytest.mark.parametrize(
    "command",
    [
        "simulate . --from 2026-01-01 --to 2026-01-02 --duration nan",
        "simulate . --from 2026-01-01 --to 2026-01-02 --duration 1e300",
        "simulate . --from 9999-12-01 --to 9999-12-31",
        "up . --for nan",
        "up . --for inf",
        "preview . --hours nan",
        "tokens create --days nan",
        "dags trigger d --conf " + '{"a":' * 100_000 + "1" + "}" * 100_000,
    ],
)
def test_a_value_out_of_range_is_told_in_one_line(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(build_app(), command.split(), prog_name="asynsched")
    assert refused.exit_code == 2, refused.output
    assert "Error: Invalid value for" in refused.stderr


@pytest.mark.parametrize("name", COMMANDS_HERE)
def test_a_command_of_airflow_s_names_the_one_that_is_here(name):
    app = build_app()
    refused = CliRunner().invoke(app, name.split(), prog_name="asynsched")
    assert refused.exit_code == 2
    assert f"Airflow's `{name}` is `asynsched {COMMANDS_HERE[name]}` here." in refused.stderr
    words = [word for word in COMMANDS_HERE[name].split() if not word.startswith("-")]
    for flag in ("-h", "--help"):
        assert (
            "Usage: asynsched " + " ".join(words)
            in CliRunner().invoke(app, [*words, flag], prog_name="asynsched").stdout
        )


@pytest.mark.parametrize("name", WITHOUT_COUNTERPART)
def test_a_command_of_airflow_s_without_a_counterpart_says_what_to_know_instead(name):
    refused = CliRunner().invoke(build_app(), name.split(), prog_name="asynsched")
    assert refused.exit_code == 2
    assert f"Airflow's `{name}` has no counterpart: {WITHOUT_COUNTERPART[name]}." in refused.stderr
