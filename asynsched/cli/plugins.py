"""`asynsched plugins list`."""

import subprocess

from asynsched.cli.command import command, fail
from asynsched.cli.output import Listing
from asynsched.cli.session import Session
from asynsched.foreground.plugin_process import has_any, longest_loading, process_of_plugins, read_plugins
from asynsched.foreground.plugins import PluginRow

COLUMNS = ("plugin", "source", "adds", "ignored", "error")


@command("list", tables=True)
def plugins_list(session: Session) -> Listing:
    """List the plugins and policies beside the DAG folder and in packages, and the parts that each adds."""
    rows: list[PluginRow] | None = []
    if has_any(session.settings):
        arguments, environment = process_of_plugins(session.settings)
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter and module
                arguments, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                timeout=longest_loading(session.settings),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            fail(f"The process that loads plugins has not answered for {longest_loading(session.settings):g} s.")
        rows = read_plugins(done.stdout)
        if done.returncode or rows is None:
            fail(f"The plugins have ended the process that loads them: {done.stderr.decode(errors='replace').strip()}")
    nothing = f"There are no plugins or policies. Looked in {session.settings.plugins_path}, and in installed packages."
    return Listing(COLUMNS, rows or (), nothing)
