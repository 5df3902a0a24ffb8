"""Real provider packages, from the index: `python -m pytest tests/compatibility`. The ordinary suite leaves these."""
