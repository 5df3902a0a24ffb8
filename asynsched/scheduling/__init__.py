"""When runs are made, which tasks may run, and how things end."""
