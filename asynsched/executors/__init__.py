"""Where tries run: the protocol, one module an executor, and the client that talks to it."""
