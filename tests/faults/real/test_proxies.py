"""The proxies of a campaign: the network that they make is as fair or as bad as it is told to be."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.faults.real.proxies import Proxies, Proxy
from tests.support.waiting import until


@pytest.fixture
def heard() -> list[bytes]:
    """What the server has received."""
    return []


@pytest.fixture
def proxied(heard: list[bytes]) -> Iterator[tuple[Proxies, Proxy]]:
    """A proxy for a server that sends back what it receives."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # the proxy may reset it
            while data := connection.recv(100):
                heard.append(data)
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        proxies = Proxies()
        yield proxies, proxies.lead_to("anywhere", server.getsockname()[1])
        proxies.close()
        server.shutdown(socket.SHUT_RDWR)


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=30)


def is_broken(connection: socket.socket) -> bool:
    """Wait for the end of a connection, or for what it brings."""
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


def test_a_proxy_passes_on_loses_and_refuses_as_it_is_told(proxied, heard):
    proxies, proxy = proxied
    with connected(proxy) as client:
        for weather in ("fair", "slow"):
            proxies.change(proxy, weather)
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
        proxies.change(proxy, "mute")
        until(lambda: proxy.weather == "mute", "it has changed")
        client.sendall(b"nobody hears the answer")
        until(lambda: heard[-1] == b"nobody hears the answer", "the server has it")
        # What was lost breaks the connection once the weather is fair.
        proxies.change(proxy, "fair")
        assert is_broken(client)
    proxies.change(proxy, "refusing")
    with connected(proxy) as client:
        assert is_broken(client)
    proxies.change(proxy, "fair")
    with connected(proxy) as client:
        client.sendall(b"again")
        assert client.recv(100) == b"again"
