"""The scheduler under virtual time: predicts when runs and tasks start and end, without waiting for it."""
