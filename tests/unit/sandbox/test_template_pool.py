"""Which templates the keeper has: one a version, few, and those that are in use."""

from collections import deque

import pytest

from sandbox.protocol import CodeVersion, SourceRef
from sandbox.supervision import template_pool
from sandbox.supervision.reactor import Reactor
from sandbox.template import Loaded

MIB = 1024**2
CODE = CodeVersion("a", "/dags", (SourceRef("a", "a", "a"),))


class Handle:
    """A template that is no process."""

    pids = iter(range(1, 10_000))

    def __init__(self, reactor, code, **callbacks):
        self.code, self.used_at, self.pid, self.n_bytes = code, reactor.now(), next(self.pids), 0
        self.is_lone_try = callbacks["is_lone_try"]
        self.miss = callbacks["on_stillborn"]
        self.is_killed = False
        self.waiting, self.ready, self.is_retired = deque(), deque(), False
        self.hear = callbacks["on_message"]

    def load(self, n_bytes):
        self.hear(self, Loaded(n_bytes=n_bytes))

    def ask(self):
        pass

    def read_output(self):
        pass

    def retire(self):
        self.is_retired = True

    def kill(self):
        self.is_killed = True

    def forget(self):
        pass


class Losses(list):
    """What is told of tries that get no process, by their numbers."""

    def lost(self, number, loss):
        self.append((number, loss))


class Templates:
    """A pool of such, and the clock that it goes by."""

    def __init__(self, monkeypatch, tmp_path):
        self.seconds = 0.0
        self.made: list[Handle] = []
        self.losses = Losses()
        monkeypatch.setattr(template_pool, "TemplateHandle", self._make)
        self.reactor = Reactor(lambda: self.seconds)
        self.pool = template_pool.TemplatePool(self.reactor, None, 30.0, events=self.losses)

    def _make(self, *args, **kwargs):
        self.made.append(Handle(*args, **kwargs))
        return self.made[-1]

    def use(self, name, n_bytes=MIB):
        """Have a try of a file begin; its template is loaded if it was not."""
        self.seconds += 1
        n_before = len(self.made)
        self.pool.assign(1, CodeVersion(name, "/dags", (SourceRef(name, name, name),)))
        for template in self.made[n_before:]:
            template.load(n_bytes)
        for template in self.made:
            template.waiting.clear()

    def pass_time(self, seconds):
        self.seconds += seconds
        self.reactor._call_due()

    @property
    def kept(self) -> list[str]:
        return [template.code.sources[0].path for template in self.made if not template.is_retired]


@pytest.fixture
def templates(monkeypatch, tmp_path) -> Templates:
    return Templates(monkeypatch, tmp_path)


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


def test_a_try_whose_template_gets_no_process_in_time_is_the_machines_and_may_have_another(templates):
    templates.pool.assign(7, CODE)
    [template] = templates.made
    template.pid = None
    templates.pass_time(31)
    assert template.is_killed
    template.miss(template)
    [(number, loss)] = templates.losses
    assert (number, loss.cause, loss.may_retry) == (7, "machine", True)
    templates.pool.assign(7, CODE)
    assert len(templates.made) == 2


def test_a_try_whose_template_cannot_be_asked_for_is_told_so(templates, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("too many open files")

    monkeypatch.setattr(template_pool, "TemplateHandle", refuse)
    templates.pool.assign(7, CODE)
    [(number, loss)] = templates.losses
    assert (number, loss.reason) == (7, "the try could not be started: too many open files")
    assert (loss.cause, loss.may_retry) == ("machine", False)
