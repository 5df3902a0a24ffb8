"""The bench of tests that have real tries ask for much."""

from tests.integration.tries.conftest import bench

__all__ = ["bench"]
