"""Settings of what lets a scheduler run for months: what it keeps, and how others see that it is well."""

from typing import Annotated, Literal

from msgspec import Meta

from asynsched.checked_settings import CheckedSettings, Count, PositiveSeconds, doc

Days = Annotated[float, Meta(ge=0, le=100_000)]
Number = Annotated[int, Meta(ge=0, le=10**15)]


class RetentionSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """What is kept of the past, and for how long. 0 keeps it for ever."""

    runs_days: Annotated[Days, doc("Days after its end that a run is kept, with its tasks, XComs and logs.")] = 0.0
    runs_per_dag: Annotated[Number, doc("Runs that are kept of each DAG, the newest.")] = 0
    xcoms_days: Annotated[Days, doc("Days after the end of a run that its XComs are kept.")] = 0.0
    xcoms_per_dag: Annotated[Number, doc("Runs of each DAG whose XComs are kept, the newest.")] = 0
    logs_days: Annotated[Days, doc("Days after the end of a run that its logs are kept.")] = 0.0
    logs_per_dag: Annotated[Number, doc("Runs of each DAG whose logs are kept, the newest.")] = 0
    asset_events_days: Annotated[Days, doc("Days that an update of an asset is kept that no DAG waits for.")] = 0.0
    audit_days: Annotated[Days, doc("Days that it is kept who did what from outside.")] = 0.0
    versions_days: Annotated[
        Days, doc("Days that a DAG's version is kept that was superseded and that no run needs, and its sources.")
    ] = 0.0
    interval: Annotated[PositiveSeconds, doc("Time between two sweeps, seconds.")] = 3600.0
    batch_rows: Annotated[Count, doc("Rows that are deleted in one transaction, about.")] = 1000


class MonitorSettings(CheckedSettings, frozen=True, forbid_unknown_fields=True):
    """How others see that a scheduler is well."""

    listen: Annotated[
        str | None, doc("Where /health and /metrics are served: HOST:PORT, or unix:PATH; by default nowhere.")
    ] = None
    metrics: Annotated[
        Literal["off", "prometheus", "opentelemetry"],
        doc("Who takes figures: a scraper of /metrics, or a collector that OTEL_EXPORTER_OTLP_ENDPOINT names."),
    ] = "off"
    metrics_prefix: Annotated[
        str,
        Meta(pattern="^[a-zA-Z][a-zA-Z0-9_]*$"),
        doc("What the names of figures begin with (Airflow: statsd_prefix)."),
    ] = "airflow"
    longest_step: Annotated[
        PositiveSeconds,
        doc("Longest that a step of a loop may take, seconds; after that the scheduler counts as stuck."),
    ] = 300.0
