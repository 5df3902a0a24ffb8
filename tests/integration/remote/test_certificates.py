"""Workers that speak HTTPS with a scheduler whose certificate a private authority has signed."""

import os
import subprocess
import sys

import pytest

from asynsched.settings import WebSettings
from tests.integration.remote.dags import DAGS
from tests.integration.remote.machines import Site
from tests.support.authority import Authority
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize("site", ["remote"], indirect=True)


@pytest.fixture
def web(site: Site, authority: Authority) -> WebSettings:
    """The settings of a scheduler with a certificate of the authority."""
    site.program.write(DAGS)
    site.scheme = "https"
    certificate, key = authority.certify("127.0.0.1")
    return WebSettings(tls_certificate=str(certificate), tls_key=str(key))


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority(tmp_path, "ours")


async def test_a_worker_that_trusts_the_private_authority_runs_a_try_to_its_end(
    site: Site, web: WebSettings, authority: Authority
):
    machine = site.machine(SSL_CERT_FILE=str(authority.file))
    site.let_go()
    async with site.serving(web=web) as scheduler:
        run = await scheduler.run("waits")
    assert run.state == "success", machine.log
    assert site.said() == ["begins 1", "ends 1"]


async def test_a_worker_that_trusts_another_authority_says_what_to_do_and_starts_no_try(
    site: Site, web: WebSettings, authority: Authority
):
    machine = site.machine(SSL_CERT_FILE=str(Authority(site.root, "another").file))
    site.let_go()
    async with site.serving(web=web) as scheduler:
        key = await scheduler.trigger("waits")
        await eventually(lambda: "schedulers.unreachable" in machine.log, "the worker says it")
        machine.kill_worker()
        (told,) = [line for line in machine.log.splitlines() if "schedulers.unreachable" in line]
        assert f"{site.addresses[0]} shows a certificate of an authority that this worker does not trust" in told
        assert "set SSL_CERT_FILE in its environment" in told
        assert "Traceback" not in machine.log
        assert site.said() == []
        # The ticket is kept: with the right authority, the next worker of the home runs the try.
        machine.environment["SSL_CERT_FILE"] = str(authority.file)
        machine.start()
        run = await site.end_of(scheduler, key)
    assert run.state == "success", machine.log
    assert site.said() == ["begins 1", "ends 1"]


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_worker_names_a_file_of_authorities_that_it_cannot_use(site: Site, content: str | None):
    file = site.root / "authorities.pem"
    if content is not None:
        file.write_text(content)
    command = [sys.executable, "-m", "asynsched", "worker", "run", "--home", str(site.root / "worker")]
    environment = os.environ | {"SSL_CERT_FILE": str(file)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"SSL_CERT_FILE: '{file}' must be a PEM file with certificates" in done.stderr
    assert "Traceback" not in done.stderr
