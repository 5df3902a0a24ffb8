"""Assets in DAG files: what they are, how one is made of a function, and what tasks are told of their updates."""
