"""Lineage: hooks report to a collector which assets they read and write. This collector discards the reports."""

from __future__ import annotations

from collections import namedtuple

from asynsched.airflow.logging_mixin import LoggingMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LineageContext = object
"""The reporting object, for example a hook."""
AssetLineageInfo = namedtuple("AssetLineageInfo", "asset count context")
ExtraLineageInfo = namedtuple("ExtraLineageInfo", "key value count context")


class HookLineage:
    """The reports of hooks: assets read, assets written, and further facts."""

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
    """Accepts the reports of hooks, and discards them."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        # By this attribute providers know a collector that has `add_extra`; they patch others.
        self._extra: dict[str, Any] = {}

    def create_asset(self, **_: Any) -> None:
        """Return None: no asset is created."""

    def add_input_asset(self, *_args: Any, **_: Any) -> None:
        """Accept the report that a hook reads an asset."""

    def add_output_asset(self, *_args: Any, **_: Any) -> None:
        """Accept the report that a hook writes an asset."""

    def add_extra(self, *_args: Any, **_: Any) -> None:
        """Accept a further fact about a hook's work."""

    @property
    def collected_assets(self) -> HookLineage:
        """An empty lineage."""
        return HookLineage()

    @property
    def has_collected(self) -> bool:
        """Whether there are reports: always false."""
        return False


NoOpCollector = HookLineageCollector
_collector = HookLineageCollector()


class HookLineageReader(LoggingMixin):
    """Base class of readers of the collector."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.lineage_collector = get_hook_lineage_collector()

    def retrieve_hook_lineage(self) -> HookLineage:
        """Return the collected lineage, which is empty."""
        return self.lineage_collector.collected_assets


def get_hook_lineage_collector() -> HookLineageCollector:
    """Return the collector of this process."""
    return _collector
