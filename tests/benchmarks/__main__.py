"""Run benchmarks: `python -m tests.benchmarks [--backend sqlite|postgresql] [--json FILE] [NAME …]`."""

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.measuring import Figure, machine, yardstick_seconds
from tests.benchmarks.workloads import WORKLOADS
from tests.support.postgres import running_postgres
from tests.support.up import Site


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *WORKLOADS], help=", ".join(WORKLOADS))
    parser.add_argument("--backend", choices=["sqlite", "postgresql"], action="append")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    figures: list[Figure] = []
    yardsticks: list[float] = []
    for backend in options.backend or ["sqlite", "postgresql"]:
        for name in options.names or WORKLOADS:
            yardsticks.append(yardstick_seconds())
            figures += measure(name, backend, yardsticks[-1])
    p = statistics.median(yardsticks)
    print(f"\n{machine()}\nP = {p * 1000:.1f} ms\n\n{table(figures)}")
    if options.json:
        document = {"machine": machine(), "p_seconds": p, "figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def measure(name: str, backend: str, p: float) -> list[Figure]:
    """Run one workload on a site of its own."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asynsched-benchmark-")))
        database = stack.enter_context(running_postgres()).new_database() if backend == "postgresql" else None
        return WORKLOADS[name](Site(root / "site", database), backend, p)


def table(figures: list[Figure]) -> str:
    """Return the figures as a Markdown table."""
    rows = [
        f"| {figure.workload} | {figure.backend} | {figure.name} | {figure.value:.3g} {figure.unit} |"
        f" {'' if figure.in_p is None else f'{figure.in_p:.2f}'} |"
        for figure in figures
    ]
    return "\n".join(["| workload | database | figure | value | in P |", "|---|---|---|---|---|", *rows])


if __name__ == "__main__":
    main()
