"""What the scheduler, the keeper, the tries and the parses say to each other."""
