"""A guardian of the parse server: watches one parse after the other, for whoever holds the other end of its socket.

    asker ──Job, a line of JSON──▶ guardian ──fork──▶ the confined process
          ◀──ParseReport, a line of JSON──

It is a fork of the server and never runs user code: each parse is a fork of it. When the asker hangs up, the parse
that is under way is ended, and the guardian ends.
"""

import os
import socket
import sys
import traceback
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
from msgspec import Struct

from asynsched.serialization.schema import ParseQuestions
from sandbox.confinement.file_rules import FileRules
from sandbox.confinement.limits import ParseLimits
from sandbox.parsing.importing import ParseRequest
from sandbox.parsing.lifelines import PipeLifeline
from sandbox.parsing.scratch import scratch_folder
from sandbox.parsing.supervise import NotWantedError, become_guardian, encode, exit_by_signals, parse_file
from sandbox.parsing.warming import Installed, installed
from sandbox.titles import set_title

STALE = b"stale\n"
"""The answer when packages were installed since the server has started: another server must be asked."""


class Greeting(Struct, frozen=True):
    """The first line of a guardian: its process."""

    pid: int


class Job(Struct, frozen=True):
    """A file to be parsed, by its path in the DAG folder, and what to ask the authors' timetables in it."""

    path: str
    questions: ParseQuestions


class ParseSite(NamedTuple):
    """What is the same for all parses of a server."""

    dags_folder: Path
    scratch: Path
    limits: ParseLimits
    installed: Installed


def serve_as_guardian(site: ParseSite, connection: socket.socket, lifeline: int, server: int) -> NoReturn:
    """Serve until the other end of the connection hangs up, and never return.

    Args:
        site: What to parse with.
        connection: Where jobs come from.
        lifeline: The writing end of a pipe to the server.
        server: The process that this was forked from.
    """
    status = 1
    try:
        os.setsid()
        exit_by_signals()
        become_guardian()
        set_title("guardian of parses")
        # The server may have ended before the kernel was asked to tell.
        if os.getppid() == server:
            _serve(site, connection, PipeLifeline(lifeline))
            status = 0
    except (NotWantedError, OSError, SystemExit):
        status = 0
    except BaseException:  # noqa: BLE001 - it must not go on as the server
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _serve(site: ParseSite, connection: socket.socket, lifeline: PipeLifeline) -> None:
    decoder = msgspec.json.Decoder(Job)
    rules = FileRules()
    connection.sendall(msgspec.json.encode(Greeting(os.getpid())) + b"\n")
    with connection.makefile("rb") as jobs:
        while line := jobs.readline():
            if installed() != site.installed:
                connection.sendall(STALE)
                return
            job = decoder.decode(line)
            with scratch_folder(site.scratch) as scratch:
                request = ParseRequest(job.path, site.dags_folder, scratch, site.limits, job.questions)
                report = parse_file(request, rules, lifeline, connection.fileno())
            connection.sendall(encode(report))
