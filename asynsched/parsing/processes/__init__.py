"""Parses as processes: by a warmed server or in a new interpreter, once or twice."""
