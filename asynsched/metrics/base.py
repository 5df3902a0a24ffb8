"""The interface that takes the figures of a scheduler; `names.py` describes each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from asynsched.errors import SettingsError
from asynsched.settings import MonitorSettings

Sample = tuple[tuple[str, ...], float]
"""The values of a gauge's labels, in order, and its own."""


class Metrics(ABC):
    """Takes figures by name, with the values of their labels in the order of `names.py`.

    The event loop calls `count` and `time` for every try: they are quick and never block.
    """

    are_wanted = True
    """Whether the metrics are exported; if not, some are not computed."""

    @abstractmethod
    def count(self, name: str, *labels: str, n: int = 1) -> None:
        """Add to a counter."""

    @abstractmethod
    def time(self, name: str, seconds: float, *labels: str) -> None:
        """Add a length of time to a timer."""

    @abstractmethod
    def gauge(self, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Set the function that reads a gauge. Any thread may call it at any time."""


class NoMetrics(Metrics):
    """Drops all figures."""

    are_wanted = False

    def count(self, name: str, *labels: str, n: int = 1) -> None:
        pass

    def time(self, name: str, seconds: float, *labels: str) -> None:
        pass

    def gauge(self, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        pass


def make_metrics(settings: MonitorSettings) -> Metrics:
    """Return the exporter that the settings choose. Raises SettingsError if its library is not installed."""
    try:
        if settings.metrics == "prometheus":
            from asynsched.metrics.prometheus import PrometheusMetrics

            return PrometheusMetrics(prefix=settings.metrics_prefix)
        if settings.metrics == "opentelemetry":
            from asynsched.metrics.open_telemetry import OpenTelemetryMetrics

            return OpenTelemetryMetrics(prefix=settings.metrics_prefix)
    except ImportError as exc:
        raise SettingsError(
            f"monitor.metrics: {settings.metrics} needs a library that is not installed ({exc.name}):"
            f" pip install 'asynsched[{settings.metrics}]'"
        ) from exc
    return NoMetrics()
