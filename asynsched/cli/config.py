"""`asynsched config …`: the settings, and the source of each."""

import platform

from asynsched._version import __version__
from asynsched.cli.command import command
from asynsched.cli.output import Done, Listing
from asynsched.cli.session import Session


@command("show", tables=True)
def show_config(session: Session) -> Listing:
    """Show every setting, its value and where it came from. Passwords in URLs are hidden."""
    return Listing(("name", "value", "source"), session.configuration.rows())


@command("version")
def show_version(_: Session) -> Done:
    """Show the versions of asynsched and of its Python."""
    python = platform.python_version()
    return Done(f"asynsched {__version__}, Python {python}", {"asynsched": __version__, "python": python})
