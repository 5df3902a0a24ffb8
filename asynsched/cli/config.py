"""`asynsched config …`: what the settings are, and where they came from."""

from asynsched.cli.command import command
from asynsched.cli.rendering import Listing
from asynsched.cli.session import Session


@command("show", tables=True)
def show_config(session: Session) -> Listing:
    """Show every setting, its value and where it came from. Passwords in URLs are hidden."""
    return Listing(("name", "value", "source"), session.configuration.rows())
