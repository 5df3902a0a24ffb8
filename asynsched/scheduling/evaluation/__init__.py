"""What happens next to the active runs, in memory: events in, one batch of changes out. No I/O, no clock."""
