"""The reports of hooks: kept where a plugin has a reader, counted, and limited."""

import pytest

from asynsched.airflow import lineage
from asynsched.airflow.lineage import HookLineageCollector
from asynsched.authoring import providers
from asynsched.authoring.assets import Asset
from asynsched.authoring.providers import Provider


class Hook:
    """Reports."""


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr(lineage, "_has_readers", True)
    return HookLineageCollector()


def test_equal_reports_of_a_hook_are_counted_and_others_are_kept_apart(collector):
    one, other = Hook(), Hook()
    for hook in (one, one, other):
        collector.add_input_asset(hook, uri="s3://bucket/a", asset_extra={"n": 1})
    collector.add_input_asset(one, uri="s3://bucket/a", asset_extra={"n": 2})
    collector.add_output_asset(one, name="table")
    collector.add_extra(one, "query", "SELECT 1")
    collector.add_extra(one, "query", "SELECT 1")
    found = collector.collected_assets
    assert [(report.asset.uri, report.asset.extra["n"], report.count, report.context) for report in found.inputs] == [
        ("s3://bucket/a", 1, 2, one), ("s3://bucket/a", 1, 1, other), ("s3://bucket/a", 2, 1, one),
    ]  # fmt: skip
    assert [(report.asset.name, report.count) for report in found.outputs] == [("table", 1)]
    assert [(report.key, report.value, report.count) for report in found.extra] == [("query", "SELECT 1", 2)]
    assert collector.has_collected


def test_a_process_without_readers_keeps_no_report():
    collector = HookLineageCollector()
    collector.add_input_asset(Hook(), uri="s3://bucket/a")
    collector.add_extra(Hook(), "query", "SELECT 1")
    assert not collector.has_collected


def test_no_more_reports_are_kept_than_the_configuration_allows(collector, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LINEAGE__MAX_ASSETS_PER_COLLECTOR", "2")
    hook = Hook()
    for name in ("a", "b", "c", "a"):
        collector.add_output_asset(hook, name=name)
    assert [(report.asset.name, report.count) for report in collector.collected_assets.outputs] == [("a", 2), ("b", 1)]


def make_file(*, path, extra=None):
    return Asset(uri=f"file://{path}", extra=extra)


def test_a_provider_makes_the_assets_of_its_schemes_and_others_are_dropped(collector, monkeypatch):
    described = {"asset-uris": [{"schemes": ["file"], "factory": f"{__name__}.make_file"}, {"schemes": ["none"]}]}
    monkeypatch.setattr(providers, "_found", [Provider("acme", "1", described)])
    collector.add_input_asset(Hook(), scheme="file", asset_kwargs={"path": "/a"})
    collector.add_input_asset(Hook(), scheme="file", asset_kwargs={"unknown": "/a"})
    collector.add_input_asset(Hook(), scheme="none")
    assert [report.asset.uri for report in collector.collected_assets.inputs] == ["file:///a"]
