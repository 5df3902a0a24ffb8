"""What commands answer, as tables and as JSON."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from asynsched.cli.dot import as_dot
from asynsched.cli.instants import read_instant
from asynsched.cli.rendering import Done, Listing, Output, Record, cell, printable, show
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
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02 03:04:05"),
        (datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), "2026-01-02 03:04:05.678"),
        (["b", "a"], "b, a"),
        ({"x": [1]}, '{"x":[1]}'),
        (HOSTILE, "a\\nb\\x1b[2Jc\\x9b1m\\u202edef\\x00"),
        ([HOSTILE], "a\\nb\\x1b[2Jc\\x9b1m\\u202edef\\x00"),
        ("käse ✓", "käse ✓"),
    ],
)
def test_values_become_one_harmless_line(value, shown):
    assert cell(value) == shown


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
    show(Listing(("a", "at"), [{"a": HOSTILE, "at": at, "other": 1}], details=("d",)), Output.JSON)
    assert json.loads(capsys.readouterr().out) == [{"a": HOSTILE, "at": "2026-01-02T00:00:00Z", "d": None}]
    show(Record({"a": 1, "rows": [{"b": 2}]}, sections=("rows",)), Output.JSON)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "rows": [{"b": 2}]}
    show(Done("It is done.", {"a": 1}), Output.JSON)
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_record_is_shown_with_its_sections_below(capsys):
    show(Record({"a": 1, "rows": [{"b": 2}], "none": []}, sections=("rows", "none")), Output.TABLE)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["field", "value"], ["a", "1"], [], ["rows"], ["b"], ["2"],
    ]  # fmt: skip


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
