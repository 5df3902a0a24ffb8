"""Which files a parse may touch, as a Landlock ruleset: begun before the fork of a parse, completed by the fork.

Most rules are the same for all parses, and make up a tenth of what a small DAG file costs. A guardian makes them once
for some parses in a row: its forks add their own to the same object of the kernel.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from sandbox.confinement import readable

if TYPE_CHECKING:
    from landlockpy import AccessFS, Ruleset

    from sandbox.confine import Policy

MOST_USES = 20
"""Parses that share a ruleset. What each adds stays in it: rules for a process and a folder that are gone by then."""


class ConfinementError(Exception):
    """The kernel cannot enforce what the settings require."""


class FileRules:
    """Makes the rulesets of parses, where the kernel has Landlock.

    Args:
        hidden: Paths that no parse may read, although what it may read is around them.
    """

    def __init__(self, hidden: Iterable[str]) -> None:
        self._hidden = [os.path.realpath(path) for path in hidden]
        # What has something hidden in it is readable in part: that may be another part for each parse.
        self._in_part = {path for path in readable.of_the_machine() if self._hides_in(path)}
        self._begun: Ruleset | None = None
        self._scratch = ""
        self._n_uses = 0

    @property
    def descriptor(self) -> int | None:
        """What has to stay open from `begin` to `complete`."""
        return None if self._begun is None else self._begun.fileno()

    def begin(self, scratch: str) -> None:
        """Have the rules ready that are the same for all parses. Call it before each fork.

        Args:
            scratch: The folder of the parse to come, which `complete` makes writable.
        """
        before, self._scratch = self._scratch, scratch
        self._n_uses += 1
        # What one parse could not be kept from leaving behind is none of the next one's business.
        if self._begun is not None and self._n_uses <= MOST_USES and not os.path.lexists(before):
            return
        if self._begun is not None:
            self._begun.close()
        self._begun, self._n_uses = None, 1
        # The fork tries it once more, and says why it is refused.
        with suppress(ConfinementError, OSError):
            self._begun = self._new()

    def complete(self, policy: "Policy") -> "Ruleset":
        """Return the rules of the parse that this process, a fork, is for. Raises ConfinementError."""
        rules = self._new() if self._begun is None else self._begun
        for path in sorted(self._readable(policy)):
            _allow(rules, path, rights().read)
        _allow(rules, policy.dags_folder, rights().look)
        _allow(rules, policy.scratch, rights().change)
        return rules

    def _new(self) -> "Ruleset":
        from landlockpy import Ruleset, Scope

        rules = Ruleset(scoped=Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET)
        for path in self._of_the_machine():
            _allow(rules, path, rights().read)
        for path in readable.DEVICES:
            _allow(rules, path, rights().use)
        return rules

    def _of_the_machine(self) -> Iterator[str]:
        """Yield what every parse may read as a whole, without what is inside of another one of these."""
        whole: list[str] = []
        for path in sorted(set(readable.of_the_machine()) - self._in_part):
            if not (whole and readable.is_within(path, whole[-1])):
                whole.append(path)
                yield path

    def _hides_in(self, path: str) -> bool:
        return any(readable.is_within(hidden, path) for hidden in self._hidden)

    def _readable(self, policy: "Policy") -> set[str]:
        """Return what this parse may read beside what all may."""
        asked = [*self._in_part, os.path.realpath(policy.dags_folder)]
        asked += [f"/proc/{os.getpid()}/{name}" for name in readable.OF_THE_PROCESS]
        asked += [
            path
            for path in map(os.path.realpath, policy.limits.readable)
            if not any(readable.is_within(path, hidden) for hidden in self._hidden)
        ]
        return {granted for path in asked for granted in readable.without_hidden(path, self._hidden)}


class Rights(NamedTuple):
    """What may be done with a path and all below it."""

    read: "AccessFS"
    look: "AccessFS"
    use: "AccessFS"
    change: "AccessFS"
    of_a_file: "AccessFS"
    """The rights that a file can have; a folder has all."""


@cache
def rights() -> Rights:
    """Return the rights that are granted. Found out before the first fork, all forks have them."""
    from landlockpy import AccessFS

    read = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.EXECUTE
    write = AccessFS.READ_FILE | AccessFS.READ_DIR | AccessFS.WRITE_FILE | AccessFS.TRUNCATE | AccessFS.REFER
    make = AccessFS.MAKE_DIR | AccessFS.MAKE_REG | AccessFS.MAKE_SYM | AccessFS.MAKE_FIFO
    remove = AccessFS.REMOVE_DIR | AccessFS.REMOVE_FILE
    return Rights(
        read=read,
        look=AccessFS.READ_DIR,
        use=AccessFS.READ_FILE | AccessFS.WRITE_FILE,
        change=write | make | remove,
        of_a_file=AccessFS.READ_FILE | AccessFS.WRITE_FILE | AccessFS.TRUNCATE | AccessFS.EXECUTE,
    )


def _allow(rules: "Ruleset", path: str, access: "AccessFS") -> None:
    """Grant access to a path, if there is one."""
    from landlockpy import LandlockError

    try:
        rules.allow_path(path, access if os.path.isdir(path) else access & rights().of_a_file)  # noqa: PTH112 - often
    except LandlockError as exc:
        raise ConfinementError(f"{path} cannot be granted: {exc}") from exc
    except OSError:
        # It is not there, or cannot be reached: there is nothing to grant.
        return
