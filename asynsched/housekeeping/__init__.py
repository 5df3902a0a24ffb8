"""Services around the work itself: hints from other processes, retention, health over HTTP."""
