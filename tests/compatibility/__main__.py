"""Try public packages' example files: `python -m tests.compatibility [--package NAME …] [--check]`.

It writes docs/compatibility.md, and ends with 1 if a file or run fails without a reason that `expected.toml` knows.
Packages and environments are kept in the folder that COMPATIBILITY_CACHE names, or else in the user's cache.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.compatibility.outcomes import Expectations, Tried, expectations, observed
from tests.compatibility.packages import ROOT, listed, prepared, unpacked
from tests.compatibility.report import COMMAND, Section, read, section, written
from tests.compatibility.trying import try_packages

REPORT = ROOT / "docs" / "compatibility.md"


def main() -> None:
    options = _options()
    found = _try(options.package, options.checkout, _cache())
    before = {one.title: one for one in read(REPORT.read_text(encoding="utf-8"))}
    now, problems = dict(before), []
    for name, files in found.items():
        now[name], failures = section(name, files, expectations().get(name, Expectations()), observed())
        # With --check, failures that the report has already are no news.
        worse = now[name].counts.worse_than(before[name].counts) if options.check and name in before else ""
        if worse or not options.check or name not in before:
            problems += [*([f"{name}: {worse}"] if worse else []), *failures]
    if not options.check:
        _write(now)
    for name in found:
        print(f"{name}: {now[name].counts}")
    if problems:
        raise SystemExit("\n".join(["", f"{len(problems)} unexpected:", *problems]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Try public packages' example files.")
    names = listed()[0]
    parser.add_argument("--package", action="append", choices=sorted(names), help="only this one; may be repeated")
    parser.add_argument(
        "--checkout", action="append", default=[], metavar="NAME=DIR",
        help="a copy of a package's repository, in place of GitHub's archive",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help=f"write nothing; fail if anything is worse than {REPORT.name} says"
    )
    options = parser.parse_args()
    options.checkout = {
        name: Path(folder).absolute() for name, _, folder in (one.partition("=") for one in options.checkout)
    }
    if unknown := options.checkout.keys() - names.keys():
        parser.error(f"--checkout: no package is called {', '.join(sorted(unknown))}")
    options.package = options.package or sorted(names)
    return options


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("COMPATIBILITY_CACHE") or home / "asynsched-compatibility").absolute()


def _try(names: list[str], checkouts: Mapping[str, Path], cache: Path) -> dict[str, list[Tried]]:
    packages, environments = listed()
    found: dict[str, list[Tried]] = {}
    for environment in environments.values():
        chosen = [packages[name] for name in names if packages[name].environment == environment.name]
        if chosen:
            beside = [packages[name] for package in chosen for name in package.beside]
            contents = {package: unpacked(package, cache, checkouts) for package in dict.fromkeys([*chosen, *beside])}
            python = prepared(environment, cache)
            with tempfile.TemporaryDirectory(prefix="asynsched-compatibility-") as scratch:
                found |= try_packages(chosen, contents, Path(scratch), python, environment.variables)
    return found


def _write(sections: Mapping[str, Section]) -> None:
    order = [name for name in listed()[0] if name in sections]
    REPORT.write_text(written([sections[name] for name in order]), encoding="utf-8")
    print(f"wrote {REPORT}", file=sys.stderr)


if __name__ == "__main__":
    main()
