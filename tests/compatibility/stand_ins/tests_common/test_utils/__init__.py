"""Helpers of system tests."""
