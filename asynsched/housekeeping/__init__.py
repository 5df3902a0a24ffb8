"""What keeps a scheduler's house in order: its lease, the bell, and sweeps. One file each."""
