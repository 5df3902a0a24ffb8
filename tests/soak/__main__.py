"""Run a scheduler for a month of virtual time: `python -m tests.soak [--days N] [--dags N] [--ceiling-mib N]`.

Prints its memory after each day as a Markdown table. Ends with 1 if it has grown by more than the ceiling since its
third day.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import structlog

from tests.soak.life import Life, Weight

MIB = 1024**2
SETTLED_AFTER = 3
"""Days until caches are full, and retention deletes as much as there comes."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--days", type=int, default=31)
    options.add_argument("--dags", type=int, default=30)
    options.add_argument("--ceiling-mib", type=float, default=8.0)
    given = options.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print("| days | tries | objects | resident MiB | database MiB |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as home:
        life = Life(Path(home), given.dags)
        life.when_weighed = lambda weight: print(_row(weight), flush=True)
        weights = life.live(given.days)
    settled, last = weights[min(SETTLED_AFTER, len(weights)) - 1], weights[-1]
    grown = (last.resident_bytes - settled.resident_bytes) / MIB
    print(f"\nSince day {settled.number} it has grown by {grown:.1f} MiB; {given.ceiling_mib:g} are allowed.")
    return int(grown > given.ceiling_mib)


def _row(weight: Weight) -> str:
    sizes = f"{weight.resident_bytes / MIB:.1f} | {weight.database_bytes / MIB:.1f}"
    return f"| {weight.number} | {weight.launched} | {weight.objects} | {sizes} |"


if __name__ == "__main__":
    sys.exit(main())
