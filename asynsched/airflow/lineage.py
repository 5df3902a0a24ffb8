"""Lineage: hooks tell a collector which assets they read and write. Nobody collects it."""

from __future__ import annotations

from collections import namedtuple

from asynsched.airflow.logging_mixin import LoggingMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LineageContext = object
"""What tells: a hook, for example."""
AssetLineageInfo = namedtuple("AssetLineageInfo", "asset count context")
ExtraLineageInfo = namedtuple("ExtraLineageInfo", "key value count context")


class HookLineage:
    """What a collector has: assets read, assets written, and more."""

    def __init__(
        self,
        inputs: list[AssetLineageInfo] | None = None,
        outputs: list[AssetLineageInfo] | None = None,
        extra: list[ExtraLineageInfo] | None = None,
    ) -> None:
        self.inputs = inputs or []
        self.outputs = outputs or []
        self.extra = extra or []


class HookLineageCollector(LoggingMixin):
    """Takes what hooks tell, and drops it."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        # By this attribute providers know a collector that has `add_extra`; they patch others.
        self._extra: dict[str, Any] = {}

    def create_asset(self, **_: Any) -> None:
        """Make no asset."""

    def add_input_asset(self, *_args: Any, **_: Any) -> None:
        """Take that a hook reads an asset."""

    def add_output_asset(self, *_args: Any, **_: Any) -> None:
        """Take that a hook writes an asset."""

    def add_extra(self, *_args: Any, **_: Any) -> None:
        """Take more about a hook's work."""

    @property
    def collected_assets(self) -> HookLineage:
        """Nothing."""
        return HookLineage()

    @property
    def has_collected(self) -> bool:
        """False."""
        return False


NoOpCollector = HookLineageCollector
_collector = HookLineageCollector()


class HookLineageReader(LoggingMixin):
    """Base class of readers of the collector."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.lineage_collector = get_hook_lineage_collector()

    def retrieve_hook_lineage(self) -> HookLineage:
        """Return what was collected: nothing."""
        return self.lineage_collector.collected_assets


def get_hook_lineage_collector() -> HookLineageCollector:
    """Return the collector of this process."""
    return _collector
