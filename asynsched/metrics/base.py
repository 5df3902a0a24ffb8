"""What takes the figures of a scheduler. Each is described in `names.py`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from asynsched.errors import SettingsError
from asynsched.settings import MonitorSettings

Sample = tuple[tuple[str, ...], float]
"""The values of a gauge's labels, in order, and its own."""


class Metrics(ABC):
    """Takes figures by their names, with the values of their labels in the order that `names.py` has them in.

    `count` and `time` are called on the event loop, for every try: they are quick and never block.

    Attributes:
        are_wanted: Whether anybody will see them: else nobody makes any.
    """

    are_wanted = True

    @abstractmethod
    def count(self, name: str, *labels: str, n: int = 1) -> None:
        """Add to a counter."""

    @abstractmethod
    def time(self, name: str, seconds: float, *labels: str) -> None:
        """Add a length of time to a timer."""

    @abstractmethod
    def gauge(self, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        """Name what reads a gauge. It is called in any thread, whenever somebody asks."""


class NoMetrics(Metrics):
    """Takes them, and forgets them."""

    are_wanted = False

    def count(self, name: str, *labels: str, n: int = 1) -> None:
        pass

    def time(self, name: str, seconds: float, *labels: str) -> None:
        pass

    def gauge(self, name: str, read: Callable[[], Iterable[Sample]]) -> None:
        pass


def make_metrics(settings: MonitorSettings) -> Metrics:
    """Return what takes the figures.

    Raises:
        SettingsError: The library that the settings ask for is not installed.
    """
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
