"""Expectations of tasks: from files in either form, over options, over history."""

from datetime import UTC, datetime, timedelta

import pytest

from asynsched.errors import SettingsError
from asynsched.protocol.messages import BranchDecision, CodeVersion, Launch, RunContext, ShortCircuitDecision
from asynsched.simulation.folder import history_of
from asynsched.simulation.script import (
    Entry,
    Expectation,
    Expectations,
    ExpectedEnds,
    Outcome,
    assumptions,
    read_entries,
    why_unused,
    with_certain_failures,
)
from asynsched.store.runs.task_instances import PastTry

FIVE = timedelta(seconds=5)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

TOML = """
"*.*" = 10
etl.load = 300
"etl.group.extract" = { duration = 20, failure_rate = 0.5 }
"etl.choose" = { follow = ["fast"] }
reports."*_mail" = { condition = false, returns = [1, 2, 3] }
"""
JSON = """{
  "*.*": 10, "etl.load": 300, "etl.group.extract": {"duration": 20, "failure_rate": 0.5},
  "etl": {"choose": {"follow": ["fast"]}}, "reports.*_mail": {"condition": false, "returns": [1, 2, 3]}
}"""


@pytest.mark.parametrize(("name", "text"), [("file.toml", TOML), ("file.json", JSON)])
def test_a_file_says_what_is_expected_of_tasks_a_name_over_a_pattern(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    expected = Expectations(read_entries(tmp_path / name), given=Expectation(duration=1, failure_rate=0.1))
    assert expected.of("other", "task") == Expectation(duration=10, failure_rate=0.1)
    assert expected.of("etl", "load") == Expectation(duration=300, failure_rate=0.1)
    assert expected.of("etl", "group.extract") == Expectation(duration=20, failure_rate=0.5)
    assert expected.of("etl", "choose") == Expectation(duration=10, failure_rate=0.1, follow=("fast",))
    assert expected.of("reports", "a_mail").returns == [1, 2, 3]
    assert expected.of("reports", "a_mail").condition is False
    assert expected.unused({"etl.load", "reports.a_mail"}) == ["etl.choose", "etl.group.extract"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '"etl.load" = { duration = 5, failure_rat = 0.1 }',
            "'etl.load' has no key 'failure_rat'. Did you mean failure",
        ),
        (
            '"etl.*" = { duraton = 5 }',
            "'etl.*' has no key 'duraton'. Did you mean duration? Its keys are duration, fail",
        ),
        ("etl.load.durat = 5", "'etl.load' has no key 'durat'. Did you mean duration?"),
        ('"etl.laod" = 5', "no task is named 'etl.laod'. Did you mean etl.load?"),
        ('"elt.group.load" = 5', "no task is named 'elt.group.load'. Did you mean etl.group.load"),
        ('"mail.x" = 5', "no task is named 'mail.x'."),
    ],
)
def test_a_key_or_a_name_that_is_mistyped_is_named_with_what_is_near(tmp_path, text, message):
    path, names = tmp_path / "file.toml", {"etl.load", "etl.group.load"}
    path.write_text(text)
    try:
        [pattern] = Expectations(read_entries(path)).unused(names)
        told = why_unused(pattern, names)
    except SettingsError as exc:
        told = str(exc).removeprefix(f"{path}: ")
    assert told.startswith(message)


def test_an_option_holds_over_history_and_a_file_over_both():
    history = {"d.t": Expectation(duration=7, failure_rate=0.2)}
    assert Expectations(history=history).of("d", "t") == Expectation(duration=7, failure_rate=0.2)
    given = Expectation(failure_rate=0.0)
    assert Expectations(given=given, history=history).of("d", "t") == Expectation(duration=7, failure_rate=0.0)
    entries = [Entry("d.*", Expectation(duration=1)), Entry("*.t", Expectation(duration=2))]
    assert Expectations(entries, given=given, history=history).of("d", "t").duration == 2


def test_history_gives_the_median_of_good_tries_and_the_share_of_bad_ones():
    tries = [PastTry("d", "t", "success", NOON, NOON + timedelta(seconds=n)) for n in (1, 2, 60)]
    tries += [
        PastTry("d", "t", "failed", NOON, NOON + timedelta(seconds=1000)),
        PastTry("d", "bad", "failed", None, NOON),
        PastTry("d", "lucky", "success", NOON, NOON),
    ]
    tries += [PastTry("d", "slow", "failed", NOON, NOON + timedelta(seconds=n)) for n in (8, 7, 9)]
    tries += [PastTry("d", "lucky", "failed", NOON, NOON)] * 100_000
    assert history_of(tries) == {
        "d.t": Expectation(duration=2, failure_rate=0.25),
        "d.bad": Expectation(failure_rate=1.0),
        "d.slow": Expectation(duration=8, failure_rate=1.0),
        "d.lucky": Expectation(duration=0, failure_rate=0.9999),
    }


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("f.toml", "x = ", "is not TOML"),
        ("f.json", "{", "is not JSON"),
        ("f.json", "[1]", "must map DAG.TASK to seconds"),
        ("f.toml", "load = 5", "'load' names no task"),
        ("f.toml", '"a.b" = -1', "'a.b': Expected `float` >= 0.0"),
        ("f.toml", '"a.b" = "long"', "'a.b': Expected `float | null`, got `str`"),
        ("f.toml", '"a.b" = {duration = 1, rate = 2}', "'a.b' has no key 'rate'. Its keys are duration"),
        ("f.toml", '"a.b" = {failure_rate = 2}', "'a.b': Expected `float` <= 1.0"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_the_key_at_fault(tmp_path, name, text, complaint):
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_entries(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert complaint in str(caught.value)


def test_only_tasks_without_a_success_fail_by_default_and_guesses_are_told():
    history = {"d.bad": Expectation(duration=8, failure_rate=1.0), "d.good": Expectation(duration=2, failure_rate=0.9)}
    expected = Expectations(history=with_certain_failures(history))
    assert expected.of("d", "bad") == Expectation(duration=8, failure_rate=1.0)
    assert expected.of("d", "good") == Expectation(duration=2)
    told = assumptions(expected, {("d", name) for name in ("bad", "good", "new", "newer")}, {("d", "new")})
    assert {(assumption.assumed, assumption.tasks) for assumption in told} == {
        ("each try fails", ("d.bad",)),
        ("each try lasts 60 s and succeeds", ("d.new", "d.newer")),
        ("a result of 1 value", ("d.new",)),
    }
    stated = Expectations(given=Expectation(duration=1, failure_rate=0), history=history)
    assert assumptions(stated, {("d", "bad"), ("d", "new")}, ()) == ()


def launch(task_id: str = "t", **options) -> Launch:
    run = RunContext("d", "r", "scheduled", NOON)
    return Launch("token", task_id, -1, 1, 3, run, CodeVersion("", ""), "log", **options)


@pytest.mark.parametrize(
    ("expectation", "options", "outcome"),
    [
        (Expectation(), {}, Outcome(duration=timedelta(minutes=1))),
        (Expectation(duration=5, returns=[1]), {}, Outcome(duration=FIVE, return_value=[1])),
        (Expectation(duration=5, follow=("a",)), {}, Outcome(duration=FIVE, decision=BranchDecision(("a",)))),
        (Expectation(duration=5, condition=False), {}, Outcome(duration=FIVE, decision=ShortCircuitDecision())),
        (Expectation(duration=5, skip=True), {}, Outcome("skipped", FIVE, "it is expected to skip itself")),
        (Expectation(duration=5, failure_rate=1), {}, Outcome("failed", FIVE, "all of its tries are expected to fail")),
        (
            Expectation(duration=5), {"execution_timeout": 2.0},
            Outcome("failed", timedelta(seconds=2), "it would take longer than its execution_timeout of 0:00:02"),
        ),
        (Expectation(duration=5, failure_rate=1), {"callback": {"event": "on_failure"}}, Outcome(duration=timedelta())),
    ],
)  # fmt: skip
def test_a_try_ends_as_is_expected(expectation, options, outcome):
    assert ExpectedEnds(Expectations(given=expectation), seed=0)(launch(**options)) == outcome


def test_chance_follows_the_rate_and_depends_on_seed_and_try_alone():
    scripts = [ExpectedEnds(Expectations(given=Expectation(failure_rate=0.3)), seed=seed) for seed in (1, 1, 2)]
    failing = [{n for n in range(2000) if script(launch(f"t{n}")).state == "failed"} for script in scripts]
    assert failing[0] == failing[1] != failing[2]
    assert 500 < len(failing[0]) < 700
