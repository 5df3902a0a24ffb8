"""`/eventLogs`: the audit, under asynsched's names of actions."""

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import Struct

from asynsched.errors import NotFound
from asynsched.queries.audit import AuditFilter, count_audit, get_audit, list_audit
from asynsched.queries.paging import utc
from asynsched.store.schema import AuditRow
from asynsched.web.airflow_api.api import AIRFLOW_API, MapIndex, Number, OrderBy, PageQuery, RowId, listed, paging
from asynsched.web.endpoint import Call

SORT_NAMES = {
    "event_log_id": "id", "when": "at", "dttm": "at", "owner": "actor", "event": "action", "extra": "detail",
    "logical_date": "id",
}  # fmt: skip
"""No action has a logical date."""
_OWN = {"owner": "actor", "event": "action"}


class EventLogResponse(Struct, frozen=True, kw_only=True):
    """An action of a user. `extra`: JSON."""

    event_log_id: int
    when: datetime
    dag_id: str | None
    task_id: str | None
    run_id: str | None
    map_index: int | None
    try_number: int | None
    event: str
    logical_date: datetime | None
    owner: str | None
    extra: str | None
    dag_display_name: str | None
    task_display_name: str | None


class EventLogCollectionResponse(Struct, frozen=True):
    """A page of actions."""

    event_logs: tuple[EventLogResponse, ...]
    total_entries: int


class EventLogQuery(Struct, frozen=True, kw_only=True):
    """Which actions are wanted; see AuditFilter."""

    dag_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    map_index: MapIndex | None = None
    try_number: Number | None = None
    owner: str | None = None
    event: str | None = None
    included_events: tuple[str, ...] = ()
    excluded_events: tuple[str, ...] = ()
    before: datetime | None = None
    after: datetime | None = None
    dag_id_pattern: str | None = None
    task_id_pattern: str | None = None
    run_id_pattern: str | None = None
    owner_pattern: str | None = None
    event_pattern: str | None = None
    dag_id_prefix_pattern: str | None = None
    task_id_prefix_pattern: str | None = None
    run_id_prefix_pattern: str | None = None
    owner_prefix_pattern: str | None = None
    event_prefix_pattern: str | None = None

    def filter(self, dag_ids: frozenset[str] | None) -> AuditFilter:
        """Return the filter of these values, and of the DAGs that may be seen."""
        return AuditFilter(
            dag_ids=dag_ids, map_index=self.map_index, equal=self._named(""), containing=self._named("_pattern"),
            beginning=self._named("_prefix_pattern"), actions=self.included_events, other_actions=self.excluded_events,
            after=None if self.after is None else utc(self.after),
            before=None if self.before is None else utc(self.before),
        )  # fmt: skip

    def _named(self, ending: str) -> Mapping[str, str]:
        names = ("dag_id", "task_id", "run_id", "owner", "event")
        values = {_OWN.get(name, name): getattr(self, f"{name}{ending}") for name in names}
        return {name: value for name, value in values.items() if value is not None}


@AIRFLOW_API.endpoint("GET", "/eventLogs")
async def get_event_logs(
    call: Call, query: EventLogQuery, page: PageQuery, order_by: OrderBy = ("event_log_id",)
) -> EventLogCollectionResponse:
    """List the actions of users."""
    if query.try_number is not None:
        return EventLogCollectionResponse((), 0)  # no action names a try
    wanted = query.filter(call.who.dag_ids)
    questions, asked = (list_audit, count_audit), paging(page, order_by, SORT_NAMES)
    return EventLogCollectionResponse(*await listed(call, questions, wanted, page=asked, shown=_response))


@AIRFLOW_API.endpoint("GET", "/eventLogs/{event_log_id}", errors=(404,))
async def get_event_log(call: Call, event_log_id: RowId) -> EventLogResponse:
    """Show an action of a user."""
    found = await call.context.ask(get_audit, event_log_id)
    if call.who.dag_ids is not None and found.dag_id not in call.who.dag_ids:
        raise NotFound("event log", str(event_log_id))
    return _response(found)


def _response(row: AuditRow) -> EventLogResponse:
    return EventLogResponse(
        event_log_id=row.id, when=row.at, dag_id=row.dag_id, task_id=row.task_id, run_id=row.run_id,
        map_index=row.detail.get("map_index"), try_number=None, event=row.action, logical_date=None, owner=row.actor,
        extra=msgspec.json.encode(row.detail).decode() if row.detail else None, dag_display_name=row.dag_id,
        task_display_name=row.task_id,
    )  # fmt: skip
