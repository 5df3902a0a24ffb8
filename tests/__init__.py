"""The tests. A package, so that `tests.support` and `tests.benchmarks` are found from the checkout."""
