"""Probes and scrapers are answered from a thread, also while the event loop stands still; nothing else is served."""

import socket
import threading
from datetime import UTC, datetime

import httpx
import pytest

from asynsched.errors import SettingsError
from asynsched.health import Health, LoopHealth
from asynsched.housekeeping.monitor_server import MonitorServer
from asynsched.metrics.base import NoMetrics
from asynsched.metrics.prometheus import PrometheusMetrics

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def health(*, is_stuck: bool = False, waits: bool = False) -> Health:
    loops = (LoopHealth("evaluator", 1.0, 400.0 if is_stuck else None, waits, is_stuck), LoopHealth("loop beat", 2.0))
    status = "stuck" if is_stuck else "waiting" if waits else "healthy"
    return Health(status, "me", "1", AT, "evaluator" if is_stuck else None, 400.0 if is_stuck else None, loops)


@pytest.fixture(params=["127.0.0.1:0", "[::1]:0", "unix:{}/monitor.sock"])
def served(request, tmp_path):
    """A server, its answers, and a client."""
    told = {"health": health()}
    metrics = PrometheusMetrics()
    server = MonitorServer(request.param.format(tmp_path), lambda: told["health"], metrics)
    server.start()
    path = server.address.removeprefix("unix:") if server.address.startswith("unix:") else None
    host = "127.0.0.1" if path else server.address.replace("::1:", "[::1]:")
    with httpx.Client(base_url=f"http://{host}", transport=httpx.HTTPTransport(uds=path), timeout=30) as client:
        yield told, metrics, client
    server.close()
    assert path is None or not (tmp_path / "monitor.sock").exists()


def test_health_and_figures_are_served(served):
    told, metrics, client = served
    answer = client.get("/health")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["metadatabase"] == {"status": "healthy"}
    heard = {"status": "healthy", "latest_scheduler_heartbeat": "2026-03-01T11:59:58Z"}
    assert answer.json()["scheduler"] == heard
    told["health"] = health(waits=True)
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["metadatabase"]) == (200, {"status": "unhealthy"})
    told["health"] = health(is_stuck=True)
    answer = client.get("/healthz?verbose")
    assert (answer.status_code, answer.json()["oldest_step"]) == (503, "evaluator")
    assert answer.json()["scheduler"]["status"] == "unhealthy"
    metrics.count("ti.start", "etl", "load")
    assert 'airflow_ti_start_total{dag_id="etl",task_id="load"} 1.0' in client.get("/metrics").text
    openmetrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.text.endswith("# EOF\n")
    assert (client.head("/metrics").status_code, client.head("/metrics").text) == (200, "")
    assert [client.get("/").status_code, client.post("/health").status_code] == [404, 501]


def test_who_says_nothing_holds_up_nobody_and_without_metrics_there_are_none():
    server = MonitorServer("127.0.0.1:0", health, NoMetrics())
    server.start()
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as silent:
        assert httpx.get(f"http://{server.address}/health", timeout=30).status_code == 200
        refused = httpx.get(f"http://{server.address}/metrics", timeout=30)
        assert (refused.status_code, "monitor.metrics" in refused.text) == (404, True)
        silent.send(b"nonsense\r\n\r\n")
        assert silent.recv(1000)
    server.close()


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:", "127.0.0.1:99999", "unix:/none/at/all", "256.1.1.1:0"])
def test_an_address_that_cannot_be_is_named(listen):
    with pytest.raises(SettingsError, match=r"monitor\.listen: cannot listen on") as refused:
        MonitorServer(listen, health, NoMetrics()).start()
    assert repr(listen) in str(refused.value)


def test_a_socket_that_a_killed_scheduler_has_left_is_taken_over(tmp_path):
    path = tmp_path / "monitor.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = MonitorServer(f"unix:{path}", health, NoMetrics())
    server.start()
    server.close()
    assert not path.exists()


def test_a_server_that_is_closed_before_its_start_does_not_listen():
    server = MonitorServer("127.0.0.1:0", health, NoMetrics())
    server.close()
    server.start()
    server.close()
    assert [thread.name for thread in threading.enumerate() if "monitor" in thread.name] == []


def test_the_gauges_of_a_scheduler_replace_those_of_the_one_before_it():
    metrics = PrometheusMetrics()
    for n in (1, 2):
        metrics.gauge("dagbag_size", lambda n=n: [((), n)])
    assert "airflow_dagbag_size 2.0" in metrics.exposition()[0].decode()
