"""Figures through OpenTelemetry's API: the SDK that the program has set up exports them."""

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from asynsched._version import __version__
from asynsched.metrics.base import Metrics, Sample
from asynsched.metrics.names import FIGURES

MILLISECONDS = 1000


class OpenTelemetryMetrics(Metrics):
    """Figures for OpenTelemetry: `airflow.ti.finish` is the counter `ti.finish`. Lengths are milliseconds.

    Args:
        meter: Makes the instruments; by default one of the global meter provider.
        prefix: How their names begin.
    """

    def __init__(self, meter: Meter | None = None, prefix: str = "airflow") -> None:
        self._meter = get_meter("asynsched", __version__) if meter is None else meter
        self._prefix = prefix
        self._instruments: dict[str, Any] = {}
        for name, figure in FIGURES.items():
            shown = f"{prefix}.{name}"
            if figure.kind == "counter":
                self._instruments[name] = self._meter.create_counter(shown, description=figure.meaning)
            elif figure.kind == "timer":
                self._instruments[name] = self._meter.create_histogram(shown, unit="ms", description=figure.meaning)

    def count(self, name: str, *labels: str, n: int = 1) -> None:
        self._instruments[name].add(n, _attributes_of(name, labels))

    def time(self, name: str, seconds: float, *labels: str) -> None:
        self._instruments[name].record(seconds * MILLISECONDS, _attributes_of(name, labels))

    def gauge(self, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, _attributes_of(name, labels)) for labels, value in read()]

        description = FIGURES[name].meaning
        self._meter.create_observable_gauge(f"{self._prefix}.{name}", [observe], description=description)


def _attributes_of(name: str, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(FIGURES[name].labels, labels, strict=True))
