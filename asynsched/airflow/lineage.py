"""Lineage: hooks report to a collector which assets they read and write, and readers of plugins ask it.

A process in which no plugin has a reader keeps no report.

Source of the names and of what counts as one report: Apache Airflow 3.3.2, `airflow/sdk/lineage.py`.
"""

from __future__ import annotations

from collections import namedtuple

from asynsched.airflow.logging_mixin import LoggingMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asynsched.authoring.assets import Asset

    Reports = dict[tuple[Any, ...], list[Any]]
    """Reports by what makes them one. Each is the reported, the number of reports, and the reporting object."""

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
    """Keeps the reports of hooks, if a plugin has a reader: of each kind as many as the configuration allows."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self._inputs: Reports = {}
        self._outputs: Reports = {}
        # By this attribute providers know a collector that has `add_extra`; they patch others.
        self._extra: Reports = {}

    def create_asset(
        self,
        *,
        scheme: str | None = None,
        uri: str | None = None,
        name: str | None = None,
        group: str | None = None,
        asset_kwargs: dict[str, Any] | None = None,
        asset_extra: dict[str, Any] | None = None,
    ) -> Asset | None:
        """Return an asset by its name or URI, or by the factory that a provider has for a scheme; None without any."""
        from asynsched.authoring.assets import Asset

        if uri or name:
            given: dict[str, Any] = {"name": name, "uri": uri, "group": group, "extra": asset_extra}
            return Asset(**{key: value for key, value in given.items() if value is not None})
        try:
            factory = _factory_of(scheme)
            return None if factory is None else factory(**(asset_kwargs or {}), extra=asset_extra)
        except Exception as exc:  # noqa: BLE001 - of a provider; a hook's work does not depend on its report
            self.log.debug("No asset can be made for the scheme %s: %s", scheme, exc)
            return None

    def add_input_asset(self, context: LineageContext, **described: Any) -> None:
        """Note that a hook reads an asset, which is described as for `create_asset`."""
        self._add_asset(self._inputs, context, described)

    def add_output_asset(self, context: LineageContext, **described: Any) -> None:
        """Note that a hook writes an asset, which is described as for `create_asset`."""
        self._add_asset(self._outputs, context, described)

    def add_extra(self, context: LineageContext, key: str, value: Any) -> None:
        """Note a further fact about a hook's work."""
        if _has_readers and key and value is not None:
            _add(self._extra, (key, repr(value), id(context)), [key, value, 0, context], "max_extras_per_collector")

    def _add_asset(self, reports: Reports, context: LineageContext, described: dict[str, Any]) -> None:
        asset = self.create_asset(**described) if _has_readers else None
        if asset is not None:
            key = (asset.name, asset.uri, repr(asset.extra), id(context))
            _add(reports, key, [asset, 0, context], "max_assets_per_collector")

    @property
    def collected_assets(self) -> HookLineage:
        """The reports so far."""
        inputs, outputs = ([AssetLineageInfo(*one) for one in kept.values()] for kept in (self._inputs, self._outputs))
        return HookLineage(inputs, outputs, [ExtraLineageInfo(*one) for one in self._extra.values()])

    @property
    def has_collected(self) -> bool:
        """Whether there are reports."""
        return bool(self._inputs or self._outputs or self._extra)


def _add(reports: Reports, key: tuple[Any, ...], report: list[Any], option: str) -> None:
    """Add a report, whose last but one value is its count, or count it again."""
    from asynsched.airflow.configuration import conf

    if key in reports or len(reports) < conf.getint("lineage", option):
        reports.setdefault(key, report)[-2] += 1


def _factory_of(scheme: str | None) -> Any:
    from asynsched.airflow.module_loading import import_string
    from asynsched.authoring.providers import providers

    paths = (provider.asset_factories.get(scheme or "") for provider in providers())
    path = next(filter(None, paths), None)
    return None if path is None else import_string(path)


NoOpCollector = HookLineageCollector
_collector = HookLineageCollector()
_has_readers = False


def collect() -> None:
    """Keep reports from now on, in this process: a plugin has a reader."""
    global _has_readers
    _has_readers = True


class HookLineageReader(LoggingMixin):
    """Base class of readers of the collector."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.lineage_collector = get_hook_lineage_collector()

    def retrieve_hook_lineage(self) -> HookLineage:
        """Return the reports so far."""
        return self.lineage_collector.collected_assets


def get_hook_lineage_collector() -> HookLineageCollector:
    """Return the collector of this process."""
    return _collector
