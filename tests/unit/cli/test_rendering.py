"""The answers of commands, as tables and as JSON."""

import json
import re
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from asynsched.cli import runs
from asynsched.cli.command import read_instant
from asynsched.cli.dags import as_dot
from asynsched.cli.output import Done, Listing, Output, Record, cell, printable, show
from asynsched.serialization.schema import SerializedDag, SerializedTask, SerializedTaskGroup

HOSTILE = "a\nb\x1b[2Jc\x9b1m\u202edef\x00"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "yes"),
        (0, "0"),
        (0.0015, "0.002"),
        (300.0, "300"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (datetime(2026, 1, 2, 5, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2))), "2026-01-02T03:04:05.678901Z"),
        (["b", "a"], "b, a"),
        ({"x": [1]}, '{"x":[1]}'),
        (HOSTILE, "a\\nb\\x1b[2Jc\\x9b1m\\u202edef\\x00"),
        ([HOSTILE], "a\\nb\\x1b[2Jc\\x9b1m\\u202edef\\x00"),
        ("käse ✓", "käse ✓"),
    ],
)
def test_values_become_one_harmless_line(value, shown):
    assert cell(value) == shown


@pytest.fixture
def in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_on_a_terminal_instants_are_local_and_have_no_fractions(in_berlin):
    assert cell(datetime(2026, 7, 2, 23, 4, 5, 678901, tzinfo=UTC), local=True) == "2026-07-03 01:04:05"
    assert cell(datetime(2026, 1, 2, 23, 4, tzinfo=UTC), local=True) == "2026-01-03 00:04:00"
    assert cell(datetime.max.replace(tzinfo=UTC), local=True) == "9999-12-31 23:59:59"


def test_logs_keep_their_lines_and_lose_their_escapes():
    assert printable("a\n\tb\x1b[0m\r", keep="\n\t") == "a\n\tb\\x1b[0m\\r"


def test_a_table_has_a_line_for_each_row_whatever_is_in_it(capsys):
    rows = [{"name": HOSTILE, "note": "[bold]x[/bold]" * 100}, {"name": "plain", "note": None}]
    show(Listing(("name", "note"), rows), Output.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "[bold]x[/bold]" * 100 in lines[1]
    assert "\x1b" not in "".join(lines)


def test_an_empty_table_says_so_beside_standard_output(capsys):
    show(Listing(("name",), [], nothing="No names."), Output.TABLE)
    show(Listing(("name",), []), Output.JSON)
    out, err = capsys.readouterr()
    assert (out, err) == ("[]\n", "No names.\n")


def test_json_has_the_fields_by_name_and_instants_in_iso_8601(capsys):
    at = datetime(2026, 1, 2, tzinfo=timezone(timedelta(0)))
    show(Listing(("a",), [{"a": HOSTILE, "at": at}], derived={"b": len}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == [{"a": HOSTILE, "at": "2026-01-02T00:00:00Z", "b": 2}]
    show(Record({"a": 1, "rows": [{"b": 2}]}, sections={"rows": ()}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "rows": [{"b": 2}]}
    show(Done("It is done.", {"a": 1}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_record_is_shown_with_its_sections_below(capsys):
    show(Record({"a": 1, "rows": [{"b": 2}], "none": []}, sections={"rows": (), "none": ()}), Output.TABLE)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["field", "value"], ["a", "1"], [], ["rows"], ["b"], ["2"],
    ]  # fmt: skip


def test_texts_of_many_lines_are_shown_in_full_below_a_table(capsys):
    rows = [{"file": "a.py", "traceback": "first\n  second\x1b[2J\n"}, {"file": "b.py", "traceback": ""}]
    show(Listing(("file",), rows, texts=("traceback",)), Output.TABLE)
    assert capsys.readouterr().out.splitlines()[-3:] == ["a.py: traceback", "first", "  second\\x1b[2J"]


RUN_ID = "scheduled__2026-01-01T00:00:00+00:00"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
RUN = {
    "dag_id": "a_dag_with_a_name", "run_id": RUN_ID, "conf": None, "try_number": 7, "reason": "all tasks have ended",
    "started_at": AT, "ended_at": AT,
}  # fmt: skip


@pytest.fixture
def on_terminal(capsys, monkeypatch):
    """Return a list of runs in a terminal of this width: its lines, and the notes beside them."""

    def shown(width, *runs, spare=("ended_at", "started_at"), wide=False, usual=(), cut=()):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        listing = Listing(tuple(RUN), [RUN | run for run in runs], usual=usual, spare=spare, cut=cut)
        show(listing, Output.TABLE, wide=wide)
        out, err = capsys.readouterr()
        lines = re.sub(r"\x1b\[\d*m", "", out).splitlines()
        assert wide or max(map(len, lines)) <= width
        return lines, err

    return shown


def test_a_wide_terminal_shows_a_whole_table(on_terminal):
    lines, said = on_terminal(200, {}, {"conf": {"a": 1}})
    assert lines[0].split() == list(RUN)
    assert "2026-01-02 03:04:05 " in lines[1]
    assert said == ""


def test_a_terminal_shows_the_usual_columns_or_on_request_all_of_them(on_terminal):
    usual = ("dag_id", "run_id", "started_at")
    lines, _ = on_terminal(200, {}, usual=usual)
    assert [line.split() for line in lines] == [[*usual], ["a_dag_with_a_name", RUN_ID, "2026-01-02", "03:04:05"]]
    lines, said = on_terminal(80, {}, {"started_at": AT.replace(second=0, microsecond=0)}, usual=usual, wide=True)
    assert (lines[0].split(), len(lines), said) == ([*RUN], 3, "")
    assert lines[1].count("2026-01-02T03:04:05.678901Z") == 2
    lines, _ = on_terminal(80, {"started_at": AT.replace(second=0, microsecond=0)}, usual=usual)
    assert lines[1].split()[-2:] == ["2026-01-02", "03:04"]


def test_a_narrow_terminal_shows_whole_names_and_lists_omitted_columns(on_terminal):
    lines, said = on_terminal(120, {}, {"dag_id": "b"})
    assert [line.split()[:2] for line in lines if RUN_ID in line] == [["a_dag_with_a_name", RUN_ID], ["b", RUN_ID]]
    assert "conf" not in " ".join(lines), "nothing is in it"
    assert "2026-01-02 03:04:05 " in " ".join(lines)
    assert "No room for ended_at:" in said
    lines, said = on_terminal(80, {})
    assert [line.split() for line in lines] == [
        ["try"], ["dag_id", "run_id", "number", "reason"],
        ["a_dag_with_a_name", RUN_ID, "7", "all", "tasks", "have"], ["ended"],
    ]  # fmt: skip
    assert "No room for started_at, ended_at:" in said


def test_runs_on_80_columns_keep_each_run_id_in_one_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    run_id = "manual__2026-11-24T12:25:25.658517+00:00"
    rows = [RUN | {"dag_id": "morning_report", "run_id": run_id, "state": "success", "logical_date": AT}]
    show(Listing(runs.COLUMNS, rows, usual=runs.USUAL_COLUMNS, spare=runs.SPARE_COLUMNS), Output.TABLE)
    assert run_id in capsys.readouterr().out


def test_a_narrow_terminal_cuts_long_reasons_and_tells_how_to_see_them(on_terminal):
    reason = f"ValueError: {'no way ' * 50}at all"
    lines, said = on_terminal(80, {"reason": reason}, {"reason": "short " * 5}, cut=("reason",))
    assert len(lines) < 16
    assert ("ValueError:" in " ".join(lines), "at all" in " ".join(lines)) == (True, False)
    assert "Long texts are cut (…): --wide shows them whole." in said
    for whole in ({"wide": True}, {"cut": ()}):
        lines, said = on_terminal(80, {"reason": reason}, **whole)
        assert "at all" in re.sub(r"\s+", " ", " ".join(lines))
        assert "cut" not in said
    lines, said = on_terminal(80, {"reason": reason}, cut=("reason",), spare=("reason", "ended_at", "started_at"))
    assert "cut" not in said


def test_where_even_names_have_no_room_they_are_broken_and_nothing_is_lost(on_terminal):
    lines, _ = on_terminal(40, {}, {"dag_id": "d" * 250}, {"started_at": None})
    assert "".join(lines).count("d" * 10) == 25
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(("wide", "shown"), [(False, ("run_id", "ended_at")), (True, tuple(RUN))])
def test_a_program_that_reads_a_table_gets_all_columns_and_whole_instants(capsys, wide, shown):
    listing = Listing(tuple(RUN), [RUN, RUN | {"reason": "x" * 500}], usual=("run_id", "ended_at"), spare=("ended_at",))
    show(listing, Output.TABLE, wide=wide)
    header, line, _ = capsys.readouterr().out.splitlines()
    assert header.split() == [*shown]
    assert line.count("2026-01-02T03:04:05.678901Z") == len({"started_at", "ended_at"} & {*shown})


def test_a_drawing_quotes_names_and_frames_groups():
    first = SerializedTask('a"b', "Task", downstream_task_ids=("g.c",), edge_labels={"g.c": 'say "x"\n\\'})
    group = SerializedTaskGroup("g")
    inner = SerializedTaskGroup("g.h", parent_id="g")
    last = SerializedTask("g.c", "Task", group_id="g")
    dag = SerializedDag(
        "d", {}, tasks=(first, last, SerializedTask("g.h.e", "T", group_id="g.h")), task_groups=(group, inner)
    )
    assert as_dot(dag).splitlines() == [
        'digraph "d" {',
        "  rankdir=LR",
        "  node [shape=box, style=rounded]",
        '  "a\\"b"',
        '  subgraph "cluster_g" {',
        '    label="g"',
        '    "g.c"',
        '    subgraph "cluster_g.h" {',
        '      label="g.h"',
        '      "g.h.e"',
        "    }",
        "  }",
        '  "a\\"b" -> "g.c" [label="say \\"x\\" \\\\"]',
        "}",
    ]


@pytest.mark.parametrize(
    ("text", "zone", "instant"),
    [
        ("2026-01-31T12:00:00Z", "Europe/Berlin", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+05:30", "UTC", datetime(2026, 1, 31, 6, 30, tzinfo=UTC)),
        ("2026-07-31 12:00", "Europe/Berlin", datetime(2026, 7, 31, 10, tzinfo=UTC)),
        ("2026-01-31", "UTC", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_instants_are_read_in_the_default_zone_unless_they_name_one(text, zone, instant):
    assert read_instant(text, zone, "--now") == instant
