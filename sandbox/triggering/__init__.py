"""What happens inside a trigger host."""
