"""Running tasks: their context, and how their code is run."""
