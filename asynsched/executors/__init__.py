"""Where tries run: the protocol, one module an executor, and the heartbeat that talks to it."""
