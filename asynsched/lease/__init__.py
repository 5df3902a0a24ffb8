"""The lease: a scheduler's claim to its runs, its renewal, and the takeover of what a lost scheduler has left."""
