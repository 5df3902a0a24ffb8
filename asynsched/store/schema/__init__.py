"""The tables, and what they share."""
