"""Real parses of hostile and of decent DAG files, as root and as an ordinary user."""
