"""A pool of templates whose processes, zygote and clock are the test's."""

import os
import socket
from itertools import count

from asynsched.protocol.frames import encode_frame
from asynsched.protocol.messages import CodeVersion, SourceRef
from sandbox.supervision import template_pool
from sandbox.supervision.reactor import Reactor
from sandbox.supervision.template_pool import TemplateHandle
from sandbox.supervision.zygote_handle import ZygoteBusy, Zygotes
from sandbox.template import Born, Forked, Loaded

MIB = 1024**2
FIRST_PROCESS = 2**22 - 100_000
"""The last numbers that Linux gives: this process has none of them, and no other one with any likelihood."""
ZYGOTE = 1_000_000
"""Its process, where a test has it end."""
IMPORT_TIMEOUT = 0.3
CODE = CodeVersion("a", "/dags", (SourceRef("a", "a", "a"),), is_plain=True)


class Template(TemplateHandle):
    """The keeper's view of a template. The test gives the process's messages."""

    pids = count(FIRST_PROCESS)

    def __init__(self, pool, reactor, zygote, code, **options):
        super().__init__(pool, reactor, zygote, code, **options)
        self.process = zygote.channels.pop()
        self.is_killed = False

    def say(self, *messages, descriptors=()):
        socket.send_fds(self.process, [b"".join(encode_frame(message) for message in messages)], descriptors)

    def is_born(self):
        self.say(Born(next(self.pids)))

    def fork(self):
        """Say that there is a process for a try, and return its number."""
        ends = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
        pid = next(self.pids)
        self.say(Forked(pid), descriptors=ends)
        for end in ends:
            os.close(end)
        return pid

    def kill(self):
        self.is_killed = True


class Zygote:
    """One that lets the test decide each request."""

    pid = None

    def __init__(self, *, is_plain):
        self.is_plain = is_plain
        self.channels = []
        self.n_started = 0
        self.is_killed = self.is_busy = self.is_unreachable = False

    def ask(self, kind, code, channel, output):
        if self.is_busy:
            raise ZygoteBusy
        if self.is_unreachable:
            raise OSError("no more processes")
        self.channels.append(socket.socket(fileno=os.dup(channel)))

    def kill(self):
        self.is_killed = True

    def ended(self, pid):
        return self.is_plain and pid == ZYGOTE

    def replace(self):
        self.n_started += 1


class Events:
    """The events of tries, by their numbers."""

    def __init__(self):
        self.losses, self.processes, self.exits = [], {}, []

    def lost(self, number, loss):
        self.losses.append((number, loss))

    def forked(self, number, process, parent):
        process.dismiss()
        self.processes[number] = process.pid

    def exited(self, pid, status, parent):
        self.exits.append((pid, status, parent))

    def has(self, pid):
        return pid in self.processes.values()

    def orphaned(self, parent):
        pass


class Templates:
    """A pool, and the clock that it goes by."""

    def __init__(self, monkeypatch):
        self.seconds = 0.0
        self.made: list[Template] = []
        self.zygote, self.full, self.events = Zygote(is_plain=True), Zygote(is_plain=False), Events()
        monkeypatch.setattr(template_pool, "TemplateHandle", self._make)
        self.reactor = Reactor(lambda: self.seconds)
        self.pool = template_pool.TemplatePool(
            self.reactor, Zygotes(self.zygote, self.full), IMPORT_TIMEOUT, self.events
        )

    def _make(self, *args, **kwargs):
        self.made.append(Template(*args, **kwargs))
        return self.made[-1]

    def begin(self, name, number=1, *, is_plain=True):
        """Begin a try of a file."""
        self.pool.assign(number, CodeVersion(name, "/dags", (SourceRef(name, name, name),), is_plain=is_plain))

    def asked_for(self, name):
        """Begin a try of a file that is not plain, and return the zygote that is asked for its template."""
        self.begin(name, is_plain=False)
        return self.made[-1].zygote

    def use(self, name, n_bytes=MIB):
        """Do so; its template is loaded if it was not."""
        self.seconds += 0.001
        n_before = len(self.made)
        self.begin(name)
        for template in self.made[n_before:]:
            template.is_born()
            template.say(Loaded(n_bytes=n_bytes))
        self.pool.read_news()
        for template in self.made:
            template.waiting.clear()

    def pass_time(self, seconds):
        self.seconds += seconds
        self.reactor._call_due()

    def end(self, template):
        """End a template's process."""
        template.process.close()
        self.pool.read_news()
        self.pool.ended(template.pid, 9)

    @property
    def kept(self) -> list[str]:
        return [template.code.sources[0].path for template in self.made if not template.is_retired]
