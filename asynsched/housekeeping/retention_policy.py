"""What is kept of the past, at one moment: the settings, or the options of `asynsched db clean`, as instants."""

from datetime import datetime, timedelta

from msgspec import Struct

from asynsched.settings import RetentionSettings
from asynsched.store.runs.retention import Bound

SUPERSEDED_FOR = timedelta(hours=1)
"""Versions that were superseded later than this before now stay: a run that is being started may be given one."""


class RetentionPolicy(Struct, frozen=True):
    """What goes: what is beyond these bounds, and older than these instants. None keeps all of it."""

    runs: Bound = Bound()
    xcoms: Bound = Bound()
    logs: Bound = Bound()
    asset_events: datetime | None = None
    audit: datetime | None = None
    versions: datetime | None = None


def policy_of(settings: RetentionSettings, now: datetime) -> RetentionPolicy:
    """Return what the settings keep at an instant; a 0 in them keeps everything."""

    def before(days: float) -> datetime | None:
        return now - timedelta(days=days) if days else None

    versions = before(settings.versions_days)
    return RetentionPolicy(
        runs=Bound(before(settings.runs_days), settings.runs_per_dag or None),
        xcoms=Bound(before(settings.xcoms_days), settings.xcoms_per_dag or None),
        logs=Bound(before(settings.logs_days), settings.logs_per_dag or None),
        asset_events=before(settings.asset_events_days),
        audit=before(settings.audit_days),
        versions=versions and min(versions, now - SUPERSEDED_FOR),
    )
