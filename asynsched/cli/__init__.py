"""`asynsched …`: the scheduler's command line."""

import gc
import sys

USUAL_COLLECTION = gc.get_threshold()
"""How often Python collects garbage in what runs for longer than a command."""


def main() -> None:
    """Run the command that the arguments of this process name."""
    if sys.platform == "win32":
        sys.exit("Error: asynsched runs on Linux and macOS; on Windows, use it in WSL 2.")
    # What a command imports is no garbage: to look for some again and again would take a tenth of its time.
    gc.set_threshold(100_000, *USUAL_COLLECTION[1:])
    from asynsched.cli.app import build_app

    try:
        build_app()(prog_name="asynsched")
    finally:
        # Nor is there anything to look for at the end, when Python would look through all of it twice more.
        gc.freeze()
