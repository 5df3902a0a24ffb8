"""Adapters of engines: each carries tickets to workers, by the contract of `asynsched.executors.remote.engine`."""
