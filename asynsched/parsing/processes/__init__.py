"""Parses as processes: forks of a warmed server, once or twice."""
