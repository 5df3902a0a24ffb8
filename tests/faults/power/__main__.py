"""Power cuts: `python -m tests.faults.power [--cuts N] [--seed S]`.

A scheduler's life is recorded, and cut off at N moments; after each, another one goes on from the state of the disk.
Ends with 0 only if all that was promised was there each time. With CI=true it also fails where nothing can be recorded.
"""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from tests.faults.power.cuts import Life, some_cuts
from tests.faults.power.recording import why_not


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=40, help="how many power cuts, 40 by default")
    parser.add_argument("--seed", type=int, help="draws the moments and the lost data; the recording still varies")
    options = parser.parse_args()
    if obstacle := why_not():
        print(f"Power cuts are NOT tried: {obstacle}.", file=sys.stderr)
        return int(os.environ.get("CI") == "true" and os.geteuid() == 0)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    n_cuts = n_wrong = 0
    with tempfile.TemporaryDirectory(prefix="asynsched-power-") as folder:
        life = Life.record(Path(folder) / "site")
        if missed := life.unlike_the_folder():
            print(f"the recording has missed something: {missed}")
            return 1
        for cut in some_cuts(life, options.cuts, random.Random(seed)):
            problems = list(cut.problems(life))
            n_cuts += 1
            n_wrong += bool(problems)
            for problem in problems:
                print(f"{cut}: {problem}", flush=True)
    print(f"{n_cuts} power cuts, {n_wrong} of them with problems")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
