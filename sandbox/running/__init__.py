"""What happens inside a try."""
