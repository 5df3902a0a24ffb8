"""The workloads: each is a function of a new system and a sheet for its figures."""
