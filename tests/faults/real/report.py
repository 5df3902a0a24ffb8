"""The report of a campaign, as JSON and as text."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from tests.faults.real.faults import Tally
from tests.faults.real.ledger import Ledger


@dataclass(frozen=True)
class Report:
    """One campaign on one backend."""

    seed: int
    backend: str
    n_schedulers: int
    seconds: float
    n_runs: int
    n_task_instances: int
    n_executions: int
    executions: dict[str, int]
    """By how they ended: `ok`, `raised`, `killed`."""
    kills: dict[str, dict[str, int]]
    """By role, then by signal."""
    n_kills: int
    n_sigkills: int
    clean_stops: dict[str, int]
    pauses: dict[str, dict[str, int]]
    database: dict[str, int]
    power_cuts: int
    orphans: int
    engine: str
    network: dict[str, int]
    scheduler_starts: int
    scheduler_exits: dict[str, int]
    problems: list[str]

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def as_text(self) -> str:
        """Return it for people."""
        where = f"{self.engine}, {self.backend}" if self.engine else self.backend
        elsewhere = [f"  network        {_listed(self.network)}"] if self.engine else []
        lines = [
            f"{where}, schedulers: {self.n_schedulers}, seed: {self.seed}, {self.seconds:.0f} s",
            f"  work           {self.n_runs} runs, {self.n_task_instances} task instances",
            f"  executions     {self.n_executions}: {_listed(self.executions)}",
            f"  kills          {self.n_kills}, of which SIGKILL {self.n_sigkills}",
            *(f"    {role:<14}{_listed(signals)}" for role, signals in sorted(self.kills.items())),
            *(f"  paused {length:<8}{_listed(roles)}" for length, roles in sorted(self.pauses.items())),
            f"  clean stops    {_listed(self.clean_stops)}",
            f"  power cuts     {self.power_cuts}",
            f"  orphans        {self.orphans} schedulers killed while their keeper was stopped",
            f"  database       {_listed(self.database)}",
            *elsewhere,
            f"  schedulers     {self.scheduler_starts} starts; ended by {_listed(self.scheduler_exits)}",
            f"  problems       {len(self.problems) or 'none'}",
            *(f"    {problem}" for problem in self.problems[:50]),
        ]
        return "\n".join(lines)


def tally_fields(tally: Tally, ledger: Ledger) -> dict[str, Any]:
    """Return the fields of a report that count the faults, and the runs meanwhile."""
    return {
        "n_executions": len(ledger.executions),
        "executions": dict(Counter(execution.how for execution in ledger.executions)),
        "kills": _nested({(role, signal): n for (signal, role), n in tally.kills.items()}),
        "n_kills": tally.n_kills,
        "n_sigkills": tally.n_sigkills,
        "clean_stops": dict(tally.clean_stops),
        "pauses": _nested(tally.pauses),
        "database": dict(tally.database),
        "power_cuts": tally.power_cuts,
        "orphans": tally.orphans,
        "network": dict(tally.network),
    }


def _nested(counts: Any) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (outer, inner), n in sorted(counts.items()):
        found.setdefault(outer, {})[inner] = n
    return found


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in sorted(counts.items())) or "none"
