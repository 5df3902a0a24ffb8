"""`asynsched …`: the scheduler's command line."""


def main() -> None:
    """Run the command that the arguments of this process name."""
    from asynsched.cli.app import build_app  # who imports this package may want only one of its modules

    build_app()(prog_name="asynsched")
