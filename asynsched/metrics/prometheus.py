"""Figures in a registry of prometheus_client: counters, summaries (number and sum), and gauges read on demand."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Summary
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from asynsched.metrics.base import Metrics, Sample
from asynsched.metrics.names import FIGURES


class PrometheusMetrics(Metrics):
    """Figures for Prometheus: `airflow_ti_finish_total` is the counter `ti.finish`. Lengths are seconds.

    Args:
        registry: Registers them; by default a new one. A registry takes the figures of one scheduler at a time: pass
            the same object to the one that serves after it.
        prefix: How their names begin.
    """

    def __init__(self, registry: CollectorRegistry | None = None, prefix: str = "airflow") -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._prefix = prefix
        self._metrics: dict[str, Any] = {}
        self._gauges: dict[str, _Gauge] = {}
        for name, figure in FIGURES.items():
            if figure.kind != "gauge":
                kind = Counter if figure.kind == "counter" else Summary
                self._metrics[name] = kind(self._named(name), figure.meaning, figure.labels, registry=self.registry)

    def count(self, name: str, *labels: str, n: int = 1) -> None:
        self._child(name, labels).inc(n)

    def time(self, name: str, seconds: float, *labels: str) -> None:
        self._child(name, labels).observe(seconds)

    def _child(self, name: str, labels: tuple[str, ...]) -> Any:
        return self._metrics[name].labels(*labels) if labels else self._metrics[name]

    def gauge(self, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        if (earlier := self._gauges.pop(name, None)) is not None:
            self.registry.unregister(earlier)  # of a scheduler that has stopped
        self._gauges[name] = _Gauge(self._named(name), name, read)
        self.registry.register(self._gauges[name])

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return all figures in the format that an Accept header asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _named(self, name: str) -> str:
        return f"{self._prefix}_{name}".replace(".", "_").replace("-", "_")


class _Gauge(Collector):
    """Reads a gauge on demand."""

    def __init__(self, shown: str, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        self._shown = shown
        self._name = name
        self._read = read

    def _family(self) -> GaugeMetricFamily:
        figure = FIGURES[self._name]
        return GaugeMetricFamily(self._shown, figure.meaning, labels=figure.labels)

    def describe(self) -> Iterable[Metric]:
        """Return the gauge without samples, so that registering it does not read it."""
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family
