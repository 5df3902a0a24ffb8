"""The services of examples/celery fit one another, the settings, the commands and the DAG. No Docker is needed."""

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from celery.bin.base import CLIContext
from celery.bin.worker import worker

from asynsched.cli.configuration import load_configuration
from asynsched.cli.up import up
from asynsched.cli.worker import worker_celery
from asynsched.executors.engines.celery_app import celery_app
from asynsched.settings import Settings
from tests.integration.remote.machines import ROOT

EXAMPLE = ROOT / "examples" / "celery"
OPTIONS = {option for parameter in up.params for option in parameter.opts}


def queues_of(arguments: list[str], settings: Settings) -> set[str]:
    """Return the queues of a worker with these arguments, which Celery checks."""
    own = worker_celery.make_context("celery", arguments).params
    assert own["home"], "it outlives its container"
    context = CLIContext(celery_app(settings.celery), no_color=True, workdir=None)
    return set(worker.make_context("worker", list(own["arguments"]), obj=context).params["queues"] or ["default"])


def test_the_services_of_the_example_fit_one_another_and_its_dag():
    compose = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    services: dict[str, Any] = compose["services"]
    queues, volumes = set(), set()
    for service in services.values():
        volumes |= {one.partition(":")[0] for one in service["volumes"]}
        _, _, command = shlex.split(service["command"])[-1].partition("exec asynsched ")
        if not command:
            continue  # the broker
        settings = load_configuration({}, service["environment"], Path("/")).settings
        assert urlsplit(settings.celery.broker_url).hostname in services
        name, *arguments = shlex.split(command)
        if name == "up":
            assert settings.executor == "celery"
            [address] = map(urlsplit, settings.workers.addresses)
            assert services[str(address.hostname)] is service
            assert settings.web.listen == f"0.0.0.0:{address.port}", "other containers reach it"
            assert {one for one in arguments if one.startswith("-")} <= OPTIONS
        else:
            assert (name, arguments.pop(0)) == ("worker", "celery")
            queues |= queues_of(arguments, settings)
    assert {one for one in volumes if not one.startswith(".")} == set(compose["volumes"])
    text = (EXAMPLE / "dags" / "training.py").read_text()
    assert queues == {"default", *re.findall(r'queue="(\w+)"', text)}, "a worker listens on each queue of the DAG"
