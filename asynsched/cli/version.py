"""`asynsched version`."""

import platform

from asynsched._version import __version__
from asynsched.cli.command import command
from asynsched.cli.rendering import Done
from asynsched.cli.session import Session


@command("version")
def show_version(_: Session) -> Done:
    """Show the versions of asynsched and of its Python."""
    python = platform.python_version()
    return Done(f"asynsched {__version__}, Python {python}", {"asynsched": __version__, "python": python})
