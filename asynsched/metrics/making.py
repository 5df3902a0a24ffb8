"""Which metrics a scheduler makes, by its settings. The libraries are optional, and loaded where they are asked for."""

from asynsched.errors import SettingsError
from asynsched.metrics.base import Metrics, NoMetrics
from asynsched.settings import MonitorSettings


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
