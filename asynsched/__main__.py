"""`python -m asynsched` is `asynsched`."""

from asynsched.cli import main

main()
