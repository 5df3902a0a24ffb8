"""The scheduler under virtual time: what runs when, without waiting for it."""
