"""The tickets that a worker works on, for the worker after it on the same home."""

import os

from asynsched.home import draft_of
from asynsched.protocol.worker_messages import Ticket
from asynsched.worker.tickets import TICKETS, KeptTicket, TicketFolder


def test_a_kept_ticket_is_found_again_and_a_half_written_one_is_removed(tmp_path, monkeypatch):
    def sync(_descriptor: int) -> None:
        raise AssertionError("a ticket need not outlast a power cut, and the disk is slow")

    monkeypatch.setattr(os, "fsync", sync)
    tickets, kept = TicketFolder(tmp_path), KeptTicket(Ticket("one", "secret", ()))
    tickets.keep(kept)
    with draft_of(tmp_path / TICKETS / "two.json", b"half", outlasts_power_cut=False) as draft:
        assert list(tickets.load()) == [kept]
        assert not draft.exists()
    tickets.remove("one")
    assert list(tickets.load()) == []
    assert list((tmp_path / TICKETS).iterdir()) == []
