"""Assets: their names and references, their events, and the events that DAGs wait for."""
