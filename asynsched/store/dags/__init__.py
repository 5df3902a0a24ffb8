"""DAGs: what is stored of them, of their versions and sources, and of the files that they come from."""
