"""The restrictions of a parse by the kernel, and the files and calls that it may still use."""
