"""The map of the command line is true: every command is where it says, under its name, with a help text."""

import click

from asynsched.cli.app import COMMANDS, GROUP_HELP, build_app


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
