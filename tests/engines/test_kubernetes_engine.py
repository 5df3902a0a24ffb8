"""The adapter of Kubernetes, alone with a double of a cluster: what it makes, answers and deletes."""

import asyncio
import base64
import dataclasses
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import pytest_asyncio
from msgspec.structs import replace
from structlog.testing import capture_logs

from asynsched.clock import Clock
from asynsched.executors.base import ExecutorContext
from asynsched.executors.engines import kubernetes, kubernetes_access, pod_deletions, pod_watch
from asynsched.executors.engines.kubernetes import KubernetesEngine
from asynsched.executors.engines.pods import in_warm_pod, ticket_secret
from asynsched.executors.remote.engine import Accepted, Job, Later, Rejected
from asynsched.protocol.worker_messages import Ticket
from asynsched.store.tickets import digest_of_secret
from tests.engines.kubernetes_double import ApiError
from tests.engines.kubernetes_site import KubernetesSite
from tests.support.authority import Authority
from tests.support.waiting import eventually


class Engine(KubernetesEngine):
    """The adapter, and its cluster."""

    def __init__(self, site: KubernetesSite) -> None:
        self.cluster = site.cluster
        super().__init__(ExecutorContext(site.root, site.settings(), Clock(), "me", print, None))

    async def place(self, *jobs: Job) -> list[Accepted | Rejected | Later]:
        addresses = self.context.settings.workers.addresses
        return list(await self.submit([replace(job, ticket=replace(job.ticket, addresses=addresses)) for job in jobs]))

    async def state_of(self, name: str) -> str:
        return (await self.look([name]))[name].state

    async def until_watching(self) -> None:
        await eventually(lambda: self.cluster.watches, "the pods are watched")


@pytest_asyncio.fixture
async def engine(tmp_path) -> AsyncIterator[Engine]:
    site = KubernetesSite(tmp_path)
    async with site.cluster.serving() as url:
        site.write_kubeconfig(url)
        engine = Engine(site)
        await engine.start()
        yield engine
        await engine.close()
    site.close()


PLUGIN = """#!/bin/sh
while [ -e {hangs} ]; do sleep 0.02; done
echo >>{calls}
[ -e {fails} ] && echo "log in first" >&2 && exit 1
echo '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{
    "token": "token-'$(wc -l <{calls})'", "expirationTimestamp": "2020-01-01T00:00:00Z"}}}}'
"""


async def test_a_token_that_expires_is_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(kubernetes_access, "RENEW_INTERVAL", timedelta(seconds=0.05))
    monkeypatch.setattr(kubernetes_access, "SLOW_SECONDS", 0.2)
    site, hangs, fails = KubernetesSite(tmp_path), tmp_path / "hangs", tmp_path / "fails"
    program = tmp_path / "plugin"
    program.write_text(PLUGIN.format(calls=tmp_path / "calls", hangs=hangs, fails=fails))
    program.chmod(0o755)
    site.write_kubeconfig(
        "http://127.0.0.1:1",
        exec={"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)},
    )
    engine = Engine(site)
    await engine.start()
    keys = engine._api.api_client.configuration.api_key

    async def is_renewed() -> None:
        before = keys["BearerToken"]
        await eventually(lambda: keys["BearerToken"] != before, "the token is renewed")

    assert keys["BearerToken"] == "Bearer token-1"
    await is_renewed()
    for obstacle, event, what in (
        (hangs, "kubernetes.token_awaited", "the log says that a program takes long"),
        (fails, "kubernetes.token_not_renewed", "the log says that a program has failed"),
    ):
        with capture_logs() as logs:
            obstacle.touch()
            await eventually(lambda event=event, logs=logs: event in [one["event"] for one in logs], what)
        obstacle.unlink()
        await is_renewed()
    assert "log in first" in str(logs)
    await engine.close()
    site.close()


async def test_certificates_of_a_kubeconfig_are_kept_in_the_home(tmp_path):
    site, authority = KubernetesSite(tmp_path), Authority(tmp_path, "ours")
    data = base64.b64encode(authority.file.read_bytes()).decode()
    site.write_kubeconfig("https://127.0.0.1:1", cluster={"certificate-authority-data": data})
    left = tmp_path / kubernetes_access.CERTIFICATES / "1"
    left.mkdir(parents=True)
    engine = Engine(site)
    await engine.start()
    assert Path(engine._api.api_client.configuration.ssl_ca_cert).parent.parent == left.parent
    assert not left.exists(), "a killed scheduler has left it"
    await engine.close()
    site.close()


def job_of(token: str, secret: str = "s1", **override: Any) -> Job:
    ticket = Ticket(token, secret, (), "dag", "run", "task", try_number=1)
    return Job(ticket, "default", 1, "default_pool", {"pod_override": override} if override else {})


async def test_a_malformed_override_rejects_its_own_job_only(engine: Engine):
    shaped = job_of("a", spec={"containers": "base"})
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    answers = await engine.place(shaped, job_of("b", spec={"affinity": deep}), job_of("c"))
    assert [type(one) for one in answers] == [Rejected, Rejected, Accepted]
    assert answers[0].reason.endswith("got `str` - at `pod_override.spec.containers`")
    assert answers[1].reason == "pod_override: it is nested too deeply"
    assert [pod["metadata"]["name"] for pod in engine.cluster.pods()] == [answers[2].engine_id]
    assert len(engine.cluster.secrets()) == 1


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (400, "json: cannot unmarshal string into Go struct field", Rejected),
        (413, "etcdserver: request is too large", Rejected),
        (422, "Pod is invalid: spec.containers[0].image: " + 1000 * "x", Rejected),
        (403, 'admission webhook "policy" denied the request: no', Rejected),
        (403, 'pods "a" is forbidden: violates PodSecurity "restricted:latest"', Rejected),
        (403, 'pods "a" is forbidden: exceeded quota: pods, requested: pods=1', Later),
        (403, 'pods is forbidden: User "me" cannot create resource "pods" in API group ""', Later),
        (403, 'pods "a" is forbidden: error looking up service account work/tries: not found', Later),
        (401, "Unauthorized", Later),
        (404, 'namespaces "work" not found', Later),
        (409, "Operation cannot be fulfilled on resourcequotas", Later),
        (429, "too many requests", Later),
        (503, "apiserver is shutting down", Later),
    ],
)
async def test_a_refusal_is_final_if_the_pod_is_wrong_and_leaves_no_secret(engine: Engine, code, message, kind):
    engine.cluster.refusal = code, message
    [answer] = await engine.place(job_of("a"))
    assert isinstance(answer, kind)
    assert message[:80] in answer.reason
    assert len(answer.reason) < 400, "people read it"
    assert (engine.cluster.pods(), engine.cluster.secrets()) == ([], [])


async def test_a_pod_whose_request_was_not_answered_is_found_and_not_made_twice(engine: Engine):
    engine.cluster.losing = 1
    [answer] = await engine.place(job_of("a"))
    assert isinstance(answer, Accepted)
    assert await engine.place(job_of("a")) == [answer], "another submit finds it, too"
    assert [pod["metadata"]["name"] for pod in engine.cluster.pods()] == [answer.engine_id]
    assert len(engine.cluster.secrets()) == 1


async def test_a_pod_that_was_perhaps_made_keeps_the_secret_with_which_it_starts(engine: Engine, monkeypatch):
    async def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the API is away")

    engine.cluster.losing = 1
    with monkeypatch.context() as outage:
        outage.setattr(engine._api, "read_namespaced_pod", away)
        assert await engine.place(job_of("a")) == [Later("etcdserver: request timed out")]
    [pod] = engine.cluster.pods()
    assert engine.cluster.secrets() == [ticket_secret(pod)]


async def test_a_ticket_for_which_a_pod_was_perhaps_made_goes_to_no_warm_pod(engine: Engine, monkeypatch):
    offered = []

    async def hand_over(ticket: Ticket, *_: Any) -> str:
        offered.append(ticket.token)
        return "a-warm-pod"

    async def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the API is away")

    [warm] = await engine.place(job_of("a"))
    assert offered == []
    warmth = SimpleNamespace(hand_over=hand_over)
    engine.context = dataclasses.replace(engine.context, warm=warmth)
    engine._settings = replace(engine._settings, keep_warm=60.0)
    assert await engine.place(job_of("b")) == [Accepted(in_warm_pod("a-warm-pod", job_of("b").ticket))]
    engine.context = dataclasses.replace(engine.context, warm=None)
    engine.cluster.losing = 1
    with monkeypatch.context() as outage:
        outage.setattr(engine._api, "read_namespaced_pod", away)
        [answer] = await engine.place(job_of("c"))
    assert isinstance(answer, Later)
    engine.context = dataclasses.replace(engine.context, warm=warmth)
    [made] = await engine.place(job_of("c"))
    assert offered == ["b"]
    assert {pod["metadata"]["name"] for pod in engine.cluster.pods()} == {warm.engine_id, made.engine_id}


async def test_a_ticket_that_is_issued_again_replaces_the_pod_of_the_former_one(engine: Engine):
    await engine.until_watching()
    [former] = await engine.place(job_of("a"))
    [later] = await engine.place(job_of("a", "s2"))
    assert later == Later("the pod of its former ticket is being deleted")
    [answer] = await engine.place(job_of("a", "s2"))
    assert answer == former, "a try has one name"
    [pod] = engine.cluster.pods()
    [volume] = [one for one in pod["spec"]["volumes"] if "secret" in one]
    assert engine.cluster.secrets() == [volume["secret"]["secretName"]]
    assert await engine.state_of(answer.engine_id) == "queued"


async def test_a_secret_left_by_a_scheduler_that_was_killed_is_deleted(engine: Engine, monkeypatch):
    killed = asyncio.Event()

    async def kill(**_: Any) -> None:
        killed.set()
        await anyio.sleep_forever()

    with monkeypatch.context() as last:
        last.setattr(engine._api, "create_namespaced_pod", kill)
        placing = asyncio.create_task(engine.place(job_of("a")))
        await killed.wait()
        placing.cancel()
        await asyncio.wait([placing])
    [left] = engine.cluster.secrets()
    [answer] = await engine.place(replace(job_of("a", "s2"), former_digest=digest_of_secret("s1")))
    assert isinstance(answer, Accepted)
    [pod] = engine.cluster.pods()
    assert engine.cluster.secrets() == [ticket_secret(pod)] != [left]


async def test_a_pod_of_somebody_else_is_left_alone(engine: Engine):
    await engine.place(job_of("a"))
    [pod] = engine.cluster.pods()
    del pod["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    [rejected] = await engine.place(job_of("a", "s2"))
    assert "already, which asynsched has not made" in rejected.reason
    assert engine.cluster.pods() == [pod]


async def test_a_pod_that_the_watch_does_not_show_is_gone_only_once_the_api_says_so(engine: Engine):
    await engine.until_watching()
    engine.cluster.is_shown = False
    [answer] = await engine.place(job_of("a"))
    assert await engine.state_of(answer.engine_id) == "queued"
    engine.cluster.failing = 1
    assert await engine.look([answer.engine_id]) == {}, "it cannot say"
    engine.cluster.delete("pods", answer.engine_id)
    assert await engine.state_of(answer.engine_id) == "gone"


async def test_a_pod_is_not_gone_because_another_one_of_its_name_is(engine: Engine):
    await engine.until_watching()
    [former] = await engine.place(job_of("a"))
    [pod] = engine.cluster.pods()
    pod["status"]["phase"] = "Failed"
    engine.cluster.store("MODIFIED", "pods", pod)
    await eventually(lambda: not engine.cluster.pods() and not engine.cluster.secrets(), "pods that ended are deleted")
    assert await engine.state_of(former.engine_id) == "gone"
    engine.cluster.is_shown = False
    assert await engine.place(job_of("a", "s2")) == [former]
    assert await engine.state_of(former.engine_id) == "queued"


@pytest.fixture
def soon(monkeypatch) -> None:
    """Deletions that have failed are tried again soon."""
    monkeypatch.setattr(pod_deletions, "PAUSE", timedelta())


async def test_a_secret_that_could_not_be_deleted_is_deleted_later(engine: Engine, soon):
    engine.cluster.refusal = 422, "invalid"
    real = engine.cluster.delete

    def fail(*_: Any) -> None:
        engine.cluster.delete = real
        raise ConnectionError("the API is away")

    engine.cluster.delete = fail
    [answer] = await engine.place(job_of("a"))
    assert isinstance(answer, Rejected)
    await eventually(lambda: not engine.cluster.secrets(), "it is deleted, though the executor asks for nothing")


async def test_a_pod_whose_cancellation_failed_is_deleted_later(engine: Engine, soon):
    await engine.until_watching()
    [answer] = await engine.place(job_of("a"))
    engine.cluster.failing = 1
    await engine.cancel([answer.engine_id])
    await eventually(lambda: not engine.cluster.pods(), "it is deleted, though the executor asks for nothing")


async def test_pods_that_cannot_be_deleted_hold_up_no_others_and_are_one_line_of_the_log(engine: Engine, soon):
    await engine.until_watching()
    answers = await engine.place(*(job_of(name) for name in "abc"))
    kept = {answers[0].engine_id, answers[1].engine_id}
    real, refused = engine.cluster.delete, []

    def refuse(kind: str, name: str, uid: str = "") -> Any:
        if name in kept:
            refused.append(name)
            raise ApiError(403, "Forbidden", f"{name} is protected")
        return real(kind, name, uid)

    engine.cluster.delete = refuse
    for pod in engine.cluster.pods():
        pod["status"]["phase"] = "Succeeded"
    engine.cluster.forget_history()
    with capture_logs() as logs:
        await eventually(lambda: len(engine.cluster.pods()) == 2, "the list goes on after a pod that stays")
        await eventually(lambda: engine.cluster.watches == 2, "and the watch does")
        await eventually(lambda: {*refused[4:]} == kept, "both are tried again, and again")
    assert [one["event"] for one in logs].count("kubernetes.not_deleted") == 1
    kept.clear()
    await eventually(lambda: not engine.cluster.pods(), "they are deleted once that is allowed")


async def test_a_batch_of_cancellations_sends_as_many_requests_at_once_as_one_of_pods(engine: Engine, monkeypatch):
    at_once, most = 0, 0
    answers = await engine.place(*(job_of(f"{n}") for n in range(30)))
    real = engine._api.delete_namespaced_pod

    async def counted(*names: str, **more: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await real(*names, **more)
        finally:
            at_once -= 1

    monkeypatch.setattr(engine._api, "delete_namespaced_pod", counted)
    await engine.cancel([one.engine_id for one in answers])
    assert engine.cluster.pods() == []
    assert most <= kubernetes.AT_ONCE


async def test_an_api_that_does_not_answer_costs_a_batch_one_time_limit(engine: Engine, monkeypatch):
    n_calls = 0

    async def silent(**_: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        raise TimeoutError

    monkeypatch.setattr(engine._api, "create_namespaced_secret", silent)
    answers = await engine.place(*(job_of(f"{n}") for n in range(50)))
    assert {type(one) for one in answers} == {Later}
    assert answers[-1].reason == "Kubernetes has not answered for 20 s"
    assert n_calls <= kubernetes.AT_ONCE


async def test_many_pods_are_listed_in_pages(engine: Engine, monkeypatch):
    await engine.until_watching()
    monkeypatch.setattr(pod_watch, "PAGE", 2)
    answers = await engine.place(*(job_of(f"{n}") for n in range(5)))
    engine.cluster.is_shown = False
    engine.cluster.forget_history()
    names = [one.engine_id for one in answers]
    await eventually(lambda: engine.cluster.watches == 2, "all were listed before the next watch")
    monkeypatch.setattr(engine, "_read", None)  # nothing is read one by one
    assert {sight.state for sight in (await engine.look(names)).values()} == {"queued"}


async def test_a_job_in_a_warm_pod_is_seen_by_its_pod_and_dropped_without_it(engine: Engine):
    [made] = await engine.place(job_of("a"))
    await engine.until_watching()
    job_id = in_warm_pod(made.engine_id, job_of("b").ticket)
    await eventually(lambda: engine.cluster.pods(), "the pod is there")
    assert (await engine.look([made.engine_id, job_id])).keys() == {made.engine_id, job_id}
    await engine.cancel([job_id])
    assert len(engine.cluster.pods()) == 1
    await engine.cancel([made.engine_id])
    assert engine.cluster.pods() == []
