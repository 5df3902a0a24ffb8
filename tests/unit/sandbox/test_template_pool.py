"""The keeper's templates: one a version, few, and those that are in use; and their isolation from one another."""

import os
import socket

import pytest

from sandbox.supervision import template_pool
from sandbox.supervision.template_pool import FULL_START_SECONDS, STAND_IN_SECONDS, START_SECONDS
from sandbox.template import Born, Exited, Forked, Loaded
from tests.unit.sandbox.template_fakes import CODE, IMPORT_TIMEOUT, ZYGOTE, Templates


@pytest.fixture
def templates(monkeypatch):
    templates = Templates(monkeypatch)
    yield templates
    for template in templates.made:
        template.process.close()
        template.forget()


def test_templates_are_few_and_those_used_least_recently_go(templates):
    names = [f"f{number:02}" for number in range(template_pool.MAX_TEMPLATES)]
    for name in names:
        templates.use(name)
    templates.use("f00")
    assert templates.kept == names
    templates.use("one more")
    assert templates.kept == [name for name in [*names, "one more"] if name != "f01"]


def test_templates_take_no_more_memory_than_is_set_but_the_newest_is_kept(templates):
    share = template_pool.MAX_BYTES // 4
    for name in ("a", "b", "c", "d"):
        templates.use(name, share)
    assert templates.kept == ["a", "b", "c", "d"]
    templates.use("a")
    templates.use("e", share)
    assert templates.kept == ["a", "c", "d", "e"]
    templates.use("huge", 2 * template_pool.MAX_BYTES)
    assert templates.kept == ["huge"]


def test_templates_that_are_not_used_go(templates):
    templates.use("a")
    templates.pass_time(template_pool.IDLE_SECONDS - 10)
    templates.use("b")
    templates.pass_time(template_pool.IDLE_SECONDS / 5)
    assert templates.kept == ["b"]


def test_the_import_timeout_counts_from_the_process_on(templates):
    templates.begin("a", 7)
    [template] = templates.made
    templates.pass_time(START_SECONDS - 1)
    template.is_born()
    templates.pass_time(1)  # the zygote's time is over: messages that have arrived are read first
    templates.pass_time(IMPORT_TIMEOUT - 0.01)
    assert (templates.zygote.is_killed, template.is_killed, templates.events.losses) == (False, False, [])
    templates.pass_time(0.02)
    assert template.is_killed
    template.say(Loaded())  # too late
    templates.end(template)
    [(number, loss)] = templates.events.losses
    assert (number, loss.reason) == (7, "a took longer than 0.3 s to import")
    assert (loss.cause, loss.may_retry) == ("task", False)


def test_a_file_that_was_loaded_at_the_last_moment_is_loaded(templates):
    templates.begin("a", 7)
    [template] = templates.made
    template.is_born()
    templates.pool.read_news()
    template.say(Loaded())
    templates.pass_time(IMPORT_TIMEOUT + 0.01)
    pid = template.fork()
    templates.pool.read_news()
    assert (template.is_killed, templates.events.processes) == (False, {7: pid})


def test_each_of_very_many_tries_that_come_together_gets_a_process(templates):
    for number in range(1_000):
        templates.pool.assign(number, CODE)
    [template] = templates.made
    template.is_born()
    template.say(Loaded())
    templates.pool.read_news()
    while not template.ready:
        for _ in template.process.recv(64, socket.MSG_DONTWAIT):  # raises where it is asked for no more
            template.fork()
            templates.pool.read_news()
    assert len(templates.events.processes) == 1_000
    with pytest.raises(BlockingIOError):
        template.process.recv(64, socket.MSG_DONTWAIT)


def test_a_try_whose_template_gets_no_process_in_time_may_have_another(templates):
    templates.pool.assign(7, CODE)
    templates.pass_time(START_SECONDS + 1)
    assert templates.zygote.is_killed
    [(number, loss)] = templates.events.losses
    assert (number, loss.cause, loss.may_retry) == (7, "machine", True)
    templates.pool.assign(7, CODE)
    assert len(templates.made) == 2


def test_a_template_that_is_not_needed_any_more_has_its_time_to_import(templates):
    for name in ("hangs", "loads"):
        templates.begin(name, 7)
        templates.pool.withdraw(7)
        templates.made[-1].is_born()
    templates.pool.read_news()
    for number in range(template_pool.MAX_TEMPLATES):
        templates.use(f"f{number:02}")
    hangs, loads = templates.made[:2]
    assert hangs.is_retired
    assert loads.is_retired
    loads.say(Loaded())
    templates.pool.read_news()
    templates.pass_time(IMPORT_TIMEOUT)
    assert (hangs.is_killed, loads.is_killed) == (True, False)
    templates.end(hangs)
    assert templates.events.losses == []


@pytest.mark.parametrize(
    "said",
    [[Born(3), Born(4)], [Loaded()], [Born(3), Forked(5)], [Born(3), Loaded(), Loaded(), Forked(5)], [Exited(3, 0)]],
)
def test_a_template_that_says_what_makes_no_sense_is_ended_and_no_other(templates, said):
    templates.begin("a", 7)
    templates.begin("b", 8)
    odd, good = templates.made
    odd.say(*said)
    good.is_born()
    good.say(Loaded())
    pid = good.fork()
    templates.pool.read_news()
    assert templates.events.processes == {8: pid}
    assert good.is_killed is False
    if odd.pid is None:
        [(number, loss)] = templates.events.losses
        assert (number, loss.cause) == (7, "machine")
    else:
        assert odd.is_killed


def test_a_template_that_claims_the_process_of_another_is_ended(templates):
    templates.begin("a", 7)
    templates.begin("b", 8)
    good, odd = templates.made
    for template in (good, odd):
        template.is_born()
        template.say(Loaded())
    pid = good.fork()
    templates.pool.read_news()
    odd.say(Exited(pid, 0))
    templates.pool.read_news()
    assert templates.events.exits == [(pid, 0, odd.pid)], "who says so is told, and is not the parent"
    ends = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    odd.say(Forked(pid), descriptors=ends)
    templates.pool.read_news()
    for end in ends:
        os.close(end)
    assert templates.events.processes == {7: pid}
    assert (good.is_killed, odd.is_killed) == (False, True)


@pytest.mark.parametrize("pid", [-1, 0, 1, os.getpid(), 2**40], ids=["all", "group", "init", "keeper", "none"])
def test_a_template_that_claims_a_process_that_it_cannot_have_is_ended(templates, pid):
    templates.begin("a", 7)
    [odd] = templates.made
    odd.is_born()
    odd.say(Loaded())
    ends = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    odd.say(Forked(pid), descriptors=ends)
    templates.pool.read_news()
    for end in ends:
        os.close(end)
    assert (templates.events.processes, odd.is_killed) == ({}, True)


def test_whatever_comes_of_what_a_template_says_others_go_on(templates, monkeypatch):
    templates.begin("a", 7)
    [template] = templates.made
    monkeypatch.setattr(templates.events, "forked", None)
    template.is_born()
    template.say(Loaded())
    template.fork()
    templates.pool.read_news()
    assert template.is_killed


def test_a_busy_zygote_is_asked_later_unless_the_try_is_ended(templates):
    templates.zygote.is_busy = True
    templates.begin("a", 7)
    templates.begin("b", 8)
    templates.pass_time(1)
    templates.pool.withdraw(8)
    assert (templates.made, templates.events.losses) == ([], [])
    templates.zygote.is_busy = False
    templates.pass_time(1)
    [template] = templates.made
    assert list(template.waiting) == [7]


def test_a_try_whose_template_cannot_be_asked_for_is_told_so(templates, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("too many open files")

    monkeypatch.setattr(template_pool, "TemplateHandle", refuse)
    templates.pool.assign(7, CODE)
    [(number, loss)] = templates.events.losses
    assert (number, loss.reason) == (7, "the try could not be started: too many open files")
    assert (loss.cause, loss.may_retry) == ("machine", False)


def test_zygotes_that_die_as_they_start_are_replaced_less_and_less_often(templates):
    started_at = []
    templates.pool.ended(ZYGOTE, 2)
    for second in range(1, 301):
        n_before = templates.zygote.n_started
        templates.pass_time(1)
        if templates.zygote.n_started > n_before:
            started_at.append(second)
            templates.pool.ended(ZYGOTE, 2)
    assert started_at == [1, 3, 7, 15, 31, 63, 123, 183, 243]
    templates.use("a")
    templates.pool.ended(ZYGOTE, 2)
    n_before = templates.zygote.n_started
    templates.pass_time(template_pool.REPLACE_SECONDS)
    assert templates.zygote.n_started == n_before + 1


def test_zygotes_that_lived_long_are_replaced_soon_though_they_gave_no_process(templates):
    """As the plain one, where no DAG is plain: without it, nobody watches over the keeper."""
    for _ in range(10):
        templates.pool.ended(ZYGOTE, 9)
        n_before = templates.zygote.n_started
        templates.pass_time(template_pool.REPLACE_SECONDS)
        assert templates.zygote.n_started == n_before + 1
        templates.pass_time(template_pool.LONGEST_REPLACE_SECONDS + 1)


@pytest.mark.parametrize("fate", ["hangs", "dies"])
def test_the_plain_zygote_stands_in_for_a_full_one_that_gives_no_process(templates, caplog, fate):
    assert templates.asked_for("a.py") is templates.full
    [missed] = templates.made
    if fate == "dies":
        missed.process.close()
        templates.pool.read_news()
    else:
        templates.pass_time(FULL_START_SECONDS - 0.1)
        assert templates.events.losses == []
        templates.pass_time(0.1)
    assert templates.full.is_killed == (fate == "hangs")
    [(number, loss)] = templates.events.losses
    assert (number, loss.may_retry) == (1, True)

    assert templates.asked_for("a.py") is templates.zygote
    stands_in = templates.made[-1]
    stands_in.is_born()
    stands_in.say(Loaded())
    pid = stands_in.fork()
    templates.pool.read_news()
    assert templates.events.processes == {1: pid}
    [message] = caplog.messages
    assert message.startswith("The plain zygote stands in for the full zygote for 60 s")
    assert message.endswith("it gave no process to load a.py")
    templates.pass_time(STAND_IN_SECONDS - 0.1)
    assert templates.asked_for("b.py") is templates.zygote
    templates.pass_time(0.1)
    assert templates.asked_for("c.py") is templates.full


def test_the_time_of_standing_in_is_not_prolonged_by_earlier_requests(templates, caplog):
    for name in ("a.py", "b.py"):
        assert templates.asked_for(name) is templates.full
    a, b = templates.made
    a.process.close()
    templates.pool.read_news()
    templates.pass_time(FULL_START_SECONDS - 1)
    b.process.close()
    templates.pool.read_news()
    assert (len(templates.events.losses), len(caplog.messages)) == (2, 1)
    templates.pass_time(STAND_IN_SECONDS - FULL_START_SECONDS + 1)
    assert templates.asked_for("a.py") is templates.full


def test_the_plain_zygote_stands_in_for_a_full_one_that_cannot_be_asked(templates, caplog):
    templates.full.is_unreachable = True
    assert templates.asked_for("a.py") is templates.zygote
    assert templates.events.losses == []
    assert ["no more processes" in message for message in caplog.messages] == [True]
