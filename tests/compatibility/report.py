"""docs/compatibility.md: written from outcomes, and read for the numbers of the last time. Pure.

A report on some packages keeps the sections of the others.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

from tests.compatibility.outcomes import Expectations, Run, Tried, Verdict, verdicts

COMMAND = "python -m tests.compatibility"
MISSING = re.compile(r"No module named '(airflow[\w.]*)'|cannot import name '(\w+)' from '(airflow[\w.]*)'")
HEAD = f"""# Compatibility

<!-- Written by `{COMMAND}`. -->

`{COMMAND}` gets public packages from the package index and parses their example files, unmodified, as a scheduler
does. It runs each DAG that needs nothing outside once, by `asynsched dags test` (or in a scheduler, if its tasks ask
one), and compares the states of the run and of its tasks with those that Airflow 3.3.2 gives.

A file needs something outside if Airflow refuses it, too, where it is tried: it lacks a package without a wheel, a
network or a value. An end that is not Airflow's has a reason in `tests/compatibility/expected.toml`, or it is a failure
of the command.

- The examples of Airflow's core are put into the DAG folder as `airflow/example_dags`, since they import one another by
  that name.
- The providers' examples are their system tests. Most need a cloud, so they are parsed and not run. They import helpers
  that are only in Airflow's repository; `tests/compatibility/stand_ins` replaces these.
- dag-factory and astronomer-cosmos have their examples in their repositories only, which come from GitHub.
  `--checkout NAME=DIR` names a copy of the repository instead.
- cosmos lists the models of a dbt project while a file is parsed. dbt then makes locks in `/dev/shm`, which
  `parse.writable` names, and files read the connections that `parse.connections` names. Everything else is confined.
"""
COLUMNS = (
    "Package", "Files", "parse", "need something outside", "DAGs run", "as in Airflow", "otherwise, for a reason",
    "failures",
)  # fmt: skip
SUMMARY = f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|"
NAMES = "Names that are missing"


@dataclass(frozen=True)
class Counts:
    """One row of the summary."""

    files: int
    parse: int
    outside: int
    runs: int
    good_runs: int
    expected: int
    failures: int

    def worse_than(self, before: "Counts") -> str:
        """Return the numbers that are worse than before."""
        for name, now, then in (
            ("files parse", self.parse, before.parse),
            ("runs end as in Airflow", self.good_runs, before.good_runs),
        ):
            if now < then:
                return f"{now} {name}, and {then} did"
        if self.failures > before.failures:
            return f"{self.failures} failures, and there were {before.failures}"
        return ""


@dataclass(frozen=True)
class Section:
    """The part of the report that is about one package."""

    title: str
    counts: Counts
    text: str


def section(
    title: str, files: Sequence[Tried], expected: Expectations, observed: Mapping[str, Run]
) -> tuple[Section, list[str]]:
    """Return the section on a package, and its failures, one line each."""
    rows, failures, found = [], [], list[tuple[str, Verdict]]()
    for tried in files:
        judged = list(verdicts(tried, expected, observed))
        found += judged
        failures += [f"{title} {tried.path} {dag_id}: {one.why}" for dag_id, one in judged if one.kind == "failure"]
        rows.append(_row(tried, judged))
    runs = [one for dag_id, one in found if dag_id]
    kinds = Counter(one.kind for _, one in found)
    counts = Counts(
        len(files), sum(not tried.errors for tried in files), kinds["outside"], len(runs),
        sum(one.is_good for one in runs), kinds["expected"], kinds["failure"],
    )  # fmt: skip
    text = "\n".join(["| File | parses | DAGs as in Airflow | notes |\n| --- | --- | --- | --- |", *rows])
    return Section(title, counts, text), failures


def written(sections: Sequence[Section]) -> str:
    """Return the whole report."""
    summary = [f"| {one.title} | {' | '.join(map(str, astuple(one.counts)))} |" for one in sections]
    parts = [HEAD, _total([one.counts for one in sections]), SUMMARY, *summary]
    parts += [f"\n## {one.title}\n\n{one.text}" for one in sections]
    parts += _missing(sections)
    return "\n".join(parts) + "\n"


def _total(counts: Sequence[Counts]) -> str:
    files, parse, outside = (sum(getattr(one, name) for one in counts) for name in ("files", "parse", "outside"))
    share = f"{100 * parse / max(files - outside, 1):.1f} % of those that can parse here"
    return f"{parse} of {files} files parse, and {outside} need something outside: {share} do.\n"


def read(report: str) -> list[Section]:
    """Return the sections of a report."""
    head, *parts = re.split(r"^## ", report, flags=re.MULTILINE)
    texts = {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}
    found = []
    for title, numbers in re.findall(r"^\| ([^|]+?) \|((?: \d+ \|){7})$", head, flags=re.MULTILINE):
        found.append(Section(title, Counts(*map(int, re.findall(r"\d+", numbers))), texts[title]))
    return found


def _row(tried: Tried, judged: Sequence[tuple[str, Verdict]]) -> str:
    runs = [one for dag_id, one in judged if dag_id]
    notes = [f"{f'{dag_id}: ' if dag_id else ''}{_mark(one)}{one.why}" for dag_id, one in judged if one.why]
    good = f"{sum(one.is_good for one in runs)} of {len(runs)}" if runs else ""
    return f"| `{tried.path}` | {_parses(tried, judged[0][1])} | {good} | {'<br>'.join(map(_cell, notes))} |"


def _parses(tried: Tried, verdict: Verdict) -> str:
    if not tried.errors:
        return "yes"
    return "not here" if verdict.kind == "outside" else "no"


def _mark(verdict: Verdict) -> str:
    return "**failure**: " if verdict.kind == "failure" else ""


def _cell(text: str) -> str:
    """Return a text for a table, without the folders of this run and of its environments."""
    text = re.sub(r"/\S*(asynsched-compatibility-[^/\s]*|/environments/[^/\s]*)/", "", " ".join(text.split()))
    text = re.sub(r"/parse-[0-9a-f]+/tmp\w*", "/…", text)  # each parse has a folder of its own
    for plain, escaped in (("|", "\\|"), ("<", "&lt;"), ("{{", "{ {")):
        text = text.replace(plain, escaped)
    return text[:240]


def _missing(sections: Sequence[Section]) -> Iterator[str]:
    counted: Counter[str] = Counter()
    for one in sections:
        for row in one.text.splitlines():
            counted.update({module or f"{place}.{name}" for module, name, place in MISSING.findall(row)})
    if counted:
        yield f"\n## {NAMES}\n\n| Name | Files |\n| --- | --- |"
        yield from (f"| `{name}` | {n} |" for name, n in sorted(counted.items(), key=lambda one: (-one[1], one[0])))
