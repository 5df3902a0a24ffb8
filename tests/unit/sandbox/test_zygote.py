"""The zygote's answers, and the keeper's requests."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from asynsched.protocol.frames import FrameReader
from asynsched.protocol.messages import CodeVersion
from sandbox.supervision.lifeline import Alarm
from sandbox.supervision.zygote_handle import ZygoteBusy, ZygoteHandle
from sandbox.template import Born, Loaded
from sandbox.zygote import TEMPLATE, Zygote, ZygoteStart


def test_a_zygote_that_gets_too_few_descriptors_keeps_none():
    keeper, channel = socket.socketpair()
    ours, theirs = socket.socketpair()
    with keeper, channel, ours:
        zygote = Zygote(ZygoteStart(channel, -1, Alarm().descriptor, Path(), os.getpid(), is_plain=True), b"")
        with theirs:
            socket.send_fds(keeper, [TEMPLATE], [theirs.fileno()])
        assert zygote.serve_one()
        ours.setblocking(False)
        assert ours.recv(1) == b""
        keeper.close()
        assert not zygote.serve_one()


def test_a_zygote_that_takes_no_more_requests_is_busy():
    handle = ZygoteHandle.__new__(ZygoteHandle)
    handle._channel, zygote = socket.socketpair()
    handle._channel.setblocking(False)
    handle._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    def ask_often():
        for _ in range(1000):
            handle.ask(TEMPLATE, CodeVersion("", ""), zygote.fileno(), zygote.fileno())

    with handle._channel, zygote, pytest.raises(ZygoteBusy):
        ask_often()


def test_an_older_keeper_that_has_no_alarm_gets_a_zygote_that_forks(tmp_path):
    keeper, theirs = socket.socketpair()
    ours, channel = socket.socketpair()
    lifeline, held = os.pipe()
    command = [
        sys.executable, "-P", "-m", "sandbox.zygote", "--home", str(tmp_path), "--channel", str(theirs.fileno()),
        "--lifeline", str(lifeline), "--keeper", str(os.getpid()), "--default-timezone", "UTC",
    ]  # fmt: skip
    with keeper, ours, (tmp_path / "code").open("w+b") as code:
        code.write(msgspec.json.encode(CodeVersion("", str(tmp_path))))
        code.flush()
        with theirs, channel, subprocess.Popen(command, pass_fds=(theirs.fileno(), lifeline)):
            theirs.close()
            socket.send_fds(keeper, [TEMPLATE], [channel.fileno(), channel.fileno(), code.fileno()])
            channel.close()
            [born, *_] = FrameReader(Born | Loaded).feed(ours.recv(4096))
            keeper.close()
    os.close(lifeline)
    os.close(held)
    assert isinstance(born, Born)


ENDED_AS_IT_GETS_WARM = """
import os, signal
from sandbox import zygote

def ended_from_outside(value, run_id=None):
    os.kill(os.getpid(), signal.SIGTERM)

zygote._nothing = ended_from_outside
zygote.warm()
"""


def test_a_process_that_is_ended_while_it_gets_warm_dies_by_the_signal():
    ended = subprocess.run([sys.executable, "-c", ENDED_AS_IT_GETS_WARM], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, "")
