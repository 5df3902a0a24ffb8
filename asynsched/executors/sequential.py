"""SequentialExecutor: one try at a time, in the order of their launches."""

from asynsched.executors.local import LocalExecutor


class SequentialExecutor(LocalExecutor):
    """A LocalExecutor that has room for one try, for debugging and for work that must not overlap."""

    @property
    def parallelism(self) -> int:
        return 1
