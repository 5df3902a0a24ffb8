"""What code of a running task is given, and how it is run."""
