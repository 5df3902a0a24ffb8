"""The differences of two versions of the code are those of difflib, or are given up."""

import random
from difflib import unified_diff

from asynsched.web.pages.drawing.differences import CONTEXT, compare


def test_the_lines_are_those_of_a_unified_difference():
    chance = random.Random(7)
    for _ in range(50):
        old = [f"line {chance.randrange(30)}" for _ in range(chance.randrange(60))]
        new = [line if chance.random() < 0.8 else "other" for line in old if chance.random() < 0.9]
        found = compare({"a.py": "\n".join(old)}, {"a.py": "\n".join(new)}, lambda: True)
        expected = list(unified_diff(old, new, lineterm="", n=CONTEXT))[2:]
        shown = [line.text for one in found for line in one.lines if line.kind != "place"]
        assert shown == [line for line in expected if not line.startswith("@@")]
        places = [line.text.split(",")[0] for one in found for line in one.lines if line.kind == "place"]
        assert len(places) == sum(line.startswith("@@") for line in expected)


def test_files_that_repeat_lines_too_often_are_not_compared():
    many = {"a.py": "x\n" * 3000, "b.py": "1"}
    found = compare(many, {"a.py": "x\n" * 2999, "b.py": "1\n", "c.py": "new"}, lambda: True)
    assert [(one.path, one.lines and [line.text for line in one.lines]) for one in found] == [
        ("a.py", None), ("c.py", ["@@ -1,0 +1,1 @@", "+new"]),
    ]  # fmt: skip


def test_a_comparison_ends_when_there_is_no_time_left():
    steps = iter([True, False])
    old, new = "\n".join("abcdefgh"), "\n".join("abXdeYgh")
    [found] = compare({"a.py": old}, {"a.py": new}, lambda: next(steps))
    assert (found.lines, found.before, found.after) == (None, old, new)
