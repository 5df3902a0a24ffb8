"""Requests for existing runs: clear, mark, cancel."""
