"""Imports Airflow's variables, connections, pools, runs and paused states into this scheduler's database.

Each kind has a plan: the wanted values by name, a function that reads the existing ones, and one that writes a value.
An existing value that differs stays, unless the user wants it replaced. So a plan that is applied twice changes nothing
the second time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import Connection

from asynsched.errors import AsynschedError, SecretsUnreadable, StoreUnavailable
from asynsched.fernet_keys import FernetKeys
from asynsched.migrating.airflow_database import AirflowPool, Secret
from asynsched.states import FINISHED_RUN_STATES
from asynsched.store import secrets
from asynsched.store.imported import (
    ImportedRun,
    RunFacts,
    facts_of_runs,
    paused_states,
    store_imported_run,
    store_paused_state,
)
from asynsched.store.rows import LONGEST_DESCRIPTION, in_common, storable
from asynsched.store.runs.pools import list_pools, set_pool
from asynsched.store.schema import VariableRow

Described = TypeVar("Described", VariableRow, secrets.ConnectionRow, AirflowPool)


class Verdict(StrEnum):
    """The result of the comparison of one value with the stored one, or of its import."""

    NEW = "new"
    SAME = "same"
    DIFFERS = "differs"
    REPLACED = "replaced"
    LEFT_OUT = "left out"


class Item(NamedTuple):
    """The verdict on one value. `why` tells the reason, if it is left out."""

    kind: str
    name: str
    verdict: Verdict
    why: str = ""


class Plan(NamedTuple):
    """Values of one kind.

    Attributes:
        action: The change's name in the audit.
        wanted: The values, by name.
        read: Returns the values that exist.
        write: Stores a value.
        left_out: The values that cannot be stored, and why.
        may_replace: Whether an existing value can be replaced.
    """

    kind: str
    action: str
    wanted: Mapping[str, Any]
    read: Callable[[Connection], Mapping[str, Any]]
    write: Callable[[Connection, str, Any], None]
    left_out: Mapping[str, str] = {}
    may_replace: Callable[[Any], bool] = lambda _: True


def compare(plan: Plan, existing: Mapping[str, Any], *, replace: bool) -> list[Item]:
    """Return the verdict on each value of a plan."""
    items = [Item(plan.kind, name, Verdict.LEFT_OUT, why) for name, why in plan.left_out.items()]
    for name, value in plan.wanted.items():
        if name not in existing:
            verdict = Verdict.NEW
        elif existing[name] == value:
            verdict = Verdict.SAME
        else:
            verdict = Verdict.REPLACED if replace and plan.may_replace(existing[name]) else Verdict.DIFFERS
        items.append(Item(plan.kind, name, verdict))
    return items


def carry_out(conn: Connection, plan: Plan, *, replace: bool) -> list[Item]:
    """Store the values of a plan that are new or replaced, in the transaction of `conn`; leave out what is refused."""
    items = []
    for item in compare(plan, plan.read(conn), replace=replace):
        if item.verdict in (Verdict.NEW, Verdict.REPLACED):
            try:
                plan.write(conn, item.name, plan.wanted[item.name])
            except StoreUnavailable:
                raise
            except AsynschedError as exc:  # checked before any statement
                item = Item(plan.kind, item.name, Verdict.LEFT_OUT, str(exc))
        items.append(item)
    return items


class Decryption:
    """Decrypts Airflow's texts. Raises SecretsUnreadable, which names no text."""

    def __init__(self, keys: FernetKeys | None) -> None:
        self._keys = keys

    def __call__(self, secret: Secret | None) -> str | None:
        if secret is None or not secret.is_encrypted:
            return None if secret is None else secret.text
        if self._keys is None:
            raise SecretsUnreadable(
                "it is encrypted: set AIRFLOW__CORE__FERNET_KEY, or name a file with Airflow's key with"
                " --fernet-key-file"
            )
        try:
            return self._keys.decrypt(secret.text)
        except SecretsUnreadable as exc:
            raise SecretsUnreadable(f"it cannot be decrypted with Airflow's key in {self._keys.source}") from exc


def variables_plan(wanted: Iterable[VariableRow], left_out: Mapping[str, str]) -> Plan:
    """Return the plan for variables."""

    def write(conn: Connection, key: str, row: VariableRow) -> None:
        secrets.set_variable(conn, key, row.value, row.description)

    def read(conn: Connection) -> dict[str, VariableRow]:
        return {row.key: row for row in secrets.list_variables(conn)}

    return Plan("variable", "variable.import", {row.key: _fitting(row) for row in wanted}, read, write, left_out)


def connections_plan(wanted: Iterable[secrets.ConnectionRow], left_out: Mapping[str, str]) -> Plan:
    """Return the plan for connections."""

    def plain(row: secrets.ConnectionRow) -> secrets.ConnectionRow:
        return _fitting(msgspec.structs.replace(row, description=row.description or ""))

    def read(conn: Connection) -> dict[str, secrets.ConnectionRow]:
        return {row.conn_id: plain(row) for row in secrets.list_connections(conn)}

    def write(conn: Connection, _: str, row: secrets.ConnectionRow) -> None:
        secrets.set_connection(conn, row)

    return Plan("connection", "connection.import", {row.conn_id: plain(row) for row in wanted}, read, write, left_out)


def pools_plan(wanted: Iterable[AirflowPool]) -> Plan:
    """Return the plan for pools."""

    def read(conn: Connection) -> dict[str, AirflowPool]:
        return {pool.name: AirflowPool(**in_common(AirflowPool, pool)) for pool in list_pools(conn)}

    def write(conn: Connection, name: str, pool: AirflowPool) -> None:
        set_pool(conn, name, pool.slots, description=pool.description, include_deferred=pool.include_deferred)

    return Plan("pool", "pool.import", {pool.name: _fitting(pool) for pool in wanted}, read, write)


def _fitting(row: Described) -> Described:
    """Return a row with a description that can be stored: Airflow's have no limit."""
    return msgspec.structs.replace(row, description=storable(row.description or "")[:LONGEST_DESCRIPTION])


def runs_plan(wanted: Sequence[ImportedRun], left_out: Mapping[str, str]) -> Plan:
    """Return the plan for runs. Two runs of a DAG are one if they have the same run_id or logical date.

    A run that Airflow has not begun replaces none: the stored run is the same one, and has begun here.
    """
    runs = {f"{one.run.dag_id} {one.run.run_id}": one for one in wanted}
    facts = {name: RunFacts(**in_common(RunFacts, one.run)) for name, one in runs.items()}
    of_dates = {(one.dag_id, one.logical_date): name for name, one in facts.items() if one.logical_date}

    def read(conn: Connection) -> dict[str, RunFacts]:
        found = {}
        for row in facts_of_runs(conn, sorted({one.run.dag_id for one in wanted})):
            own = f"{row.dag_id} {row.run_id}"
            of_date = own if row.logical_date is None else of_dates.get((row.dag_id, row.logical_date), own)
            for name in {own, of_date} & runs.keys():
                found[name] = row if facts[name].state in FINISHED_RUN_STATES else facts[name]
        return found

    def write(conn: Connection, name: str, _: RunFacts) -> None:
        store_imported_run(conn, runs[name])

    def may_replace(existing: RunFacts) -> bool:
        return existing.state in FINISHED_RUN_STATES

    return Plan("run", "run.import", facts, read, write, left_out, may_replace)


def paused_plan(wanted: Mapping[str, tuple[bool, str]], now: datetime) -> Plan:
    """Return the plan for paused states: for each DAG whether it is paused, and its file."""

    def write(conn: Connection, dag_id: str, is_paused: bool) -> None:
        store_paused_state(conn, dag_id, file_path=wanted[dag_id][1], is_paused=is_paused, now=now)

    states = {dag_id: is_paused for dag_id, (is_paused, _) in wanted.items()}
    return Plan("paused state", "dag.import", states, paused_states, write)
