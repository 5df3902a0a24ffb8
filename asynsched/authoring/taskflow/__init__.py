"""The TaskFlow style: decorators that make tasks and DAGs of functions."""
