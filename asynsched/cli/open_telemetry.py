"""OpenTelemetry's SDK for `asynsched up`: an embedding program sets up its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from asynsched.errors import SettingsError
from asynsched.settings import Settings


@contextmanager
def telemetry(settings: Settings) -> Iterator[None]:
    """Within, metrics are sent to a collector by OTLP over HTTP, as OTEL_EXPORTER_OTLP_ENDPOINT and its like say.

    Does nothing unless `monitor.metrics` asks for it, or where somebody has set up a provider already, such as
    `opentelemetry-instrument`.

    Raises:
        SettingsError: The SDK is not installed.
    """
    if settings.monitor.metrics != "opentelemetry":
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.metrics import get_meter_provider, set_meter_provider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError as exc:
        raise SettingsError(
            f"monitor.metrics: opentelemetry needs a library that is not installed ({exc.name}):"
            " pip install 'asynsched[opentelemetry]'"
        ) from exc
    if isinstance(get_meter_provider(), MeterProvider):
        yield
        return
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    set_meter_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
