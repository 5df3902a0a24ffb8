"""`asynsched` as its users meet it: whole processes, driven by commands, files and signals."""
