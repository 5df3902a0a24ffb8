"""`asynsched …`: the scheduler's command line."""

import gc

USUAL_COLLECTION = gc.get_threshold()
"""How often Python collects garbage in what runs for longer than a command."""


def main() -> None:
    """Run the command that the arguments of this process name."""
    # What a command imports is no garbage: to look for some again and again would take a tenth of its time.
    gc.set_threshold(100_000, *USUAL_COLLECTION[1:])
    from asynsched.cli.app import build_app

    build_app()(prog_name="asynsched")
