"""Runs and their task instances: states, queue, slots, XComs, callbacks, deadlines, backfills, retention."""
