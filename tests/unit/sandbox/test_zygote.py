"""What the zygote does when it is asked, and how the keeper asks."""

import os
import socket
from pathlib import Path

import pytest

from sandbox.protocol import CodeVersion
from sandbox.supervision.watchdog import Alarm
from sandbox.supervision.zygote_handle import ZygoteBusy, ZygoteHandle
from sandbox.zygote import TEMPLATE, Zygote, ZygoteStart


def test_a_zygote_that_gets_too_few_descriptors_keeps_none_so_that_the_keeper_sees_it():
    keeper, channel = socket.socketpair()
    ours, theirs = socket.socketpair()
    with keeper, channel, ours:
        zygote = Zygote(ZygoteStart(channel, -1, Alarm().descriptor, Path(), os.getpid()))
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
