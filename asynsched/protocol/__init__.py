"""The messages between the scheduler, the keeper, the tries and the parses."""
