"""Real schedulers under real faults: `python -m tests.faults [--minutes N] [--on ENGINE] [--seed S] [--json FILE]`.

Without options: at least 200 kills and 200 runs, on SQLite with one scheduler and on PostgreSQL with two, which takes
some minutes. With `--on`, tasks run on the workers of an engine, on SQLite unless a backend is given, and its processes
and the network fail, too. Ends with 0 only if nothing was wrong. After a run with problems, its folder is kept and
printed.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.faults.real.campaign import Campaign, Plan
from tests.faults.real.elsewhere import ENGINES
from tests.faults.real.report import Report
from tests.support.postgres import running_postgres

DEFAULT_KILLS = 105
DEFAULT_RUNS = 100
"""On each backend, where no time is given."""
SCHEDULERS = {"sqlite": 1, "postgresql": 2}


def main() -> int:
    # Every signal to end makes it end its processes; a background process of a shell ignores Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    options = _options()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    backends = options.backend or (["sqlite"] if options.on else ["sqlite", "postgresql"])
    on = "".join(f" --on {engine}" for engine in options.on or ())
    print(f"seed {seed}: repeat with `python -m tests.faults{on} --seed {seed}`", flush=True)
    reports = []
    campaigns = [(backend, engine) for engine in options.on or [""] for backend in backends]
    for backend, engine in campaigns:
        plan = Plan(
            seed,
            engine,
            options.schedulers or SCHEDULERS[backend],
            min_kills=(0 if options.minutes else DEFAULT_KILLS) if options.kills is None else options.kills,
            min_runs=DEFAULT_RUNS if options.minutes is None and options.kills is None else 0,
            min_seconds=60 * (options.minutes or 0) / len(campaigns),
        )
        reports.append(_run(backend, plan))
        print(f"\n{reports[-1].as_text()}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    return 1 if any(report.problems for report in reports) else 0


def _run(backend: str, plan: Plan) -> Report:
    root = Path(tempfile.mkdtemp(prefix="asynsched-faults-"))
    root.chmod(0o755)
    with ExitStack() as stack:
        server = stack.enter_context(running_postgres()) if backend == "postgresql" else None
        if server is not None:
            # Commits must outlive a crash of the server. Crashes of the machine are not tested here.
            server.execute("ALTER SYSTEM SET synchronous_commit = on", "SELECT pg_reload_conf()")
        report = Campaign(plan, root / "site", server).run()
    if report.problems:
        print(f"kept for a look: {root}", file=sys.stderr)
    else:
        shutil.rmtree(root)
    return report


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long to do harm in all; without it, until enough was done")
    parser.add_argument("--kills", type=int, help="least number of kills on each backend")
    parser.add_argument("--seed", type=int, help="the seed of the faults; by default a new one, which is printed")
    parser.add_argument("--on", choices=ENGINES, action="append", help="run the tasks on workers of this engine")
    parser.add_argument("--backend", choices=["sqlite", "postgresql"], action="append")
    parser.add_argument("--schedulers", type=int, help="how many, on PostgreSQL")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the reports there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
