"""The keeper's parts: tries, templates, records, logs, and its connections."""
