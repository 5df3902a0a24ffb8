"""`asynsched version`."""

import sys

from asynsched._version import __version__
from asynsched.cli.command import command, new_app
from asynsched.cli.rendering import Done
from asynsched.cli.session import Session

app = new_app()


@command(app, "version")
def show_version(session: Session) -> Done:
    """Show the versions of asynsched and of its Python."""
    del session
    python = sys.version.split()[0]
    return Done(f"asynsched {__version__}, Python {python}", {"asynsched": __version__, "python": python})
