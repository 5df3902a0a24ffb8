"""Sensors: tasks that wait for something."""
