"""Operators: the kinds of tasks."""
