"""Figures: the counts match the events, under Airflow's names, for Prometheus and for OpenTelemetry alike."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from asynsched import DAG, Asset, BashOperator, OpenTelemetryMetrics, PrometheusMetrics
from asynsched.assembly import name_gauges
from asynsched.channels import TryReported
from asynsched.errors import SettingsError
from asynsched.metrics.base import Metrics, make_metrics
from asynsched.metrics.names import FIGURES
from asynsched.protocol.messages import Ended, Launch
from asynsched.settings import MonitorSettings
from asynsched.simulation.script import Outcome
from asynsched.store.schema import dag_run, task_instance
from tests.support.simulated import Simulated

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def script(launch: Launch) -> Outcome:
    """Tasks last a minute; `second` fails twice, then for good."""
    return Outcome("failed" if launch.task_id == "second" else "success", timedelta(minutes=1))


def live(home, metrics: Metrics) -> None:
    """Run a scheduler for half an hour, in which a DAG has three runs, and another one three by an asset."""
    with DAG("counted", schedule="*/10 * * * *") as counted:
        BashOperator(task_id="first", bash_command="true", outlets=[Asset("a")]) >> BashOperator(
            task_id="second", bash_command="true", retries=1, retry_delay=timedelta(minutes=1)
        )
    with DAG("follows", schedule=[Asset("a")]) as follows:
        BashOperator(task_id="only", bash_command="true")
    simulated = Simulated(home, [counted, follows], script, NOON - timedelta(seconds=1))
    simulated.metrics = metrics
    simulated.run_for(timedelta(minutes=29))


COUNTED = {
    ("ti.start", "counted", "first"): 3,
    ("ti.start", "counted", "second"): 6,
    ("ti.start", "follows", "only"): 3,
    ("ti.finish", "counted", "first", "success"): 3,
    ("ti.finish", "counted", "second", "up_for_retry"): 3,
    ("ti.finish", "counted", "second", "failed"): 3,
    ("ti.finish", "follows", "only", "success"): 3,
    ("ti_successes", "counted", "first"): 3,
    ("ti_successes", "follows", "only"): 3,
    ("ti_failures", "counted", "second"): 6,
    ("operator_successes", "BashOperator"): 6,
    ("operator_failures", "BashOperator"): 6,
    ("asset.updates",): 3,
    ("asset.triggered_dagruns",): 3,
}
LENGTHS = {
    ("task.duration", "counted", "second"): (6, 360.0),
    ("task.queued_duration", "counted", "first"): (3, 0.0),
    ("task.scheduled_duration", "counted", "first"): (3, 0.0),
    ("dagrun.duration.success", "follows"): (3, 180.0),
    ("dagrun.duration.failed", "counted"): (3, 720.0),
    ("dagrun.schedule_delay", "counted"): (3, 0.0),
}


def test_prometheus_is_given_what_happened(tmp_path):
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, prefix="airflow")
    live(tmp_path, metrics)
    names = {f"airflow_{name}".replace(".", "_"): name for name in FIGURES}
    counted, lengths = {}, {}
    body, content_type = metrics.exposition("text/plain")
    assert content_type.startswith("text/plain")
    for family in text_string_to_metric_families(body.decode()):
        if family.name.endswith("_created"):
            continue  # the family that prometheus_client adds for each
        name = names[family.name]
        labels = FIGURES[name].labels
        for sample in family.samples:
            key = (name, *(sample.labels[label] for label in labels))
            if sample.name.endswith("_total"):
                counted[key] = sample.value
            elif sample.name.endswith(("_count", "_sum")):
                lengths.setdefault(key, {})[sample.name.rpartition("_")[2]] = sample.value
    beats = ("scheduler_heartbeat",)
    assert {key: n for key, n in counted.items() if n and key != beats} == COUNTED
    found = {key: (of["count"], of["sum"]) for key, of in lengths.items() if key in LENGTHS}
    assert {key: n for key, (n, _) in found.items()} == {key: n for key, (n, _) in LENGTHS.items()}
    for key, (_, seconds) in LENGTHS.items():
        assert found[key][1] == pytest.approx(seconds, abs=1), key


def test_open_telemetry_is_given_what_happened(tmp_path):
    reader = InMemoryMetricReader()
    live(tmp_path, OpenTelemetryMetrics(MeterProvider([reader]).get_meter("test")))
    counted, lengths = Counter(), {}
    [resource] = reader.get_metrics_data().resource_metrics
    for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
        name = metric.name.removeprefix("airflow.")
        for point in metric.data.data_points:
            key = (name, *(point.attributes[label] for label in FIGURES[name].labels))
            if FIGURES[name].kind == "counter":
                counted[key] += point.value
            elif key in LENGTHS:
                lengths[key] = (point.count, pytest.approx(point.sum / 1000, abs=1))
    assert {key: n for key, n in counted.items() if key != ("scheduler_heartbeat",)} == COUNTED
    assert lengths == LENGTHS


class Gauged(Simulated):
    """Has its gauges named, as a scheduler that is not simulated has."""

    async def _live(self, services, channels, span):
        name_gauges(self.metrics, services)
        await super()._live(services, channels, span)


def test_what_came_too_late_to_change_anything_is_counted(tmp_path):
    with DAG("slow", schedule="@once") as slow:
        for name in ("one", "two"):
            BashOperator(task_id=name, bash_command="true")
    simulated = Gauged(tmp_path, [slow], script, NOON)
    simulated.metrics = metrics = PrometheusMetrics(CollectorRegistry(), prefix="etl")
    told = []

    def read() -> float:
        families = {family.name: family for family in text_string_to_metric_families(metrics.exposition()[0].decode())}
        [sample] = families["etl_scheduler_stale_messages"].samples
        return sample.value

    async def meddle(channels):
        await simulated.clock.sleep(timedelta(seconds=30))
        channels.reports.put_nowait(TryReported(Ended("an earlier try", "success", simulated.clock.now())))
        await simulated.clock.sleep(timedelta(seconds=1))
        told.append(read())
        # Another scheduler has taken the run over, and this one was not told.
        for table, others in ((dag_run, {"scheduler_id": "another"}), (task_instance, {})):
            taken = sa.update(table).values(lease_epoch=99, **others)
            await simulated.database.write(lambda conn, taken=taken: conn.execute(taken))
        await simulated.clock.sleep(timedelta(minutes=2))
        told.append(read())

    simulated.act = meddle
    simulated.run_for(timedelta(minutes=3))
    assert told[0] == 1, "the message"
    assert told[1] - told[0] >= 3, "refused by the database: the ends of two tasks, and of their run"


def test_settings_choose_the_library_and_name_one_that_is_missing(monkeypatch):
    assert not make_metrics(MonitorSettings()).are_wanted
    named = make_metrics(MonitorSettings(metrics="prometheus", metrics_prefix="etl"))
    named.gauge("pool.open_slots", lambda: [(("default_pool",), 3)])
    assert b'etl_pool_open_slots{pool_name="default_pool"} 3.0' in named.exposition()[0]
    assert isinstance(make_metrics(MonitorSettings(metrics="opentelemetry")), OpenTelemetryMetrics)
    monkeypatch.setitem(__import__("sys").modules, "asynsched.metrics.prometheus", None)
    with pytest.raises(SettingsError, match=r"pip install 'asynsched\[prometheus\]'"):
        make_metrics(MonitorSettings(metrics="prometheus"))
