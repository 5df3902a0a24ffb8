"""The pods of tries: what their manifests are made of, and what a task may say of them."""

from typing import Any

import pytest
from msgspec.structs import replace

from asynsched.executors.engines.pods import (
    SHAPE,
    PodError,
    checked_template,
    label_of,
    merged,
    name_of,
    pod_of,
    secret_name_of,
    secret_of,
    shape_in,
    ticket_secret,
)
from asynsched.executors.remote.engine import Job
from asynsched.protocol.worker_messages import Ticket

TEMPLATE = checked_template({}, "image")


def job_of(executor_config: dict[str, Any], token: str = "one", secret: str = "s1") -> Job:
    ticket = Ticket(token, secret, ("http://a", "http://b"), "Etl_1", "run", "load", try_number=1)
    return Job(ticket, "default", 1, "default_pool", executor_config)


def overridden(**fields: Any) -> Job:
    return job_of({"pod_override": fields})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a pod", r"pod_override: Expected `object \| null`, got `str`"),
        ([], r"pod_override: Expected `object \| null`, got `array`"),
        ({"spec": "base"}, r"got `str` - at `pod_override\.spec`"),
        ({"spec": {"containers": {"name": "base"}}}, r"got `object` - at `pod_override\.spec\.containers`"),
        ({"spec": {"containers": ["base"]}}, r"got `str` - at `pod_override\.spec\.containers\[0\]`"),
        ({"spec": {"containers": [{"image": "mine"}]}}, r"missing required field `name` - at `pod_override\.spec"),
        ({"spec": {"containers": [{"name": ["base"]}]}}, r"Expected `str`, got `array` - at `pod_override\.spec"),
        ({"spec": {"containers": [{"name": "base", "volumeMounts": "/a"}]}}, r"containers\[0\]\.volumeMounts`"),
        ({"spec": {"volumes": "data"}}, r"got `str` - at `pod_override\.spec\.volumes`"),
        ({"metadata": "name"}, r"got `str` - at `pod_override\.metadata`"),
        ({"metadata": {"labels": ["a"]}}, r"got `array` - at `pod_override\.metadata\.labels`"),
        ({"metadata": {"annotations": {"a": 1}}}, r"got `int` - at `pod_override\.metadata\.annotations\[\.\.\.\]`"),
    ],
)
def test_an_override_of_the_wrong_shape_is_refused_with_its_path(override, message):
    with pytest.raises(PodError, match=message):
        pod_of(job_of({"pod_override": override}), TEMPLATE)


@pytest.mark.parametrize("field", ["metadata", "spec"])
def test_a_template_of_the_wrong_shape_is_refused_with_its_path(field):
    with pytest.raises(PodError, match=rf"the manifest: .* - at `the manifest\.{field}`"):
        checked_template({field: "text"}, "image")


def test_fields_that_are_null_say_nothing():
    override = {"metadata": None, "spec": {"volumes": None, "containers": [{"name": "base", "command": None}]}}
    pod = pod_of(overridden(**override), TEMPLATE)
    assert pod["spec"]["containers"][0]["command"] == ["python", "-m", "asynsched"]
    plain = pod_of(job_of({}), TEMPLATE)
    pod["metadata"]["annotations"][SHAPE] = shape_in(plain)  # such a pod may take fewer tries
    assert pod == plain


def test_items_without_a_usable_name_are_joined_and_left_to_the_api():
    assert merged([{"name": ["a"]}], [{"name": "b"}]) == [{"name": ["a"]}, {"name": "b"}]
    mounts = [{"name": "data", "mountPath": "/a"}], [{"name": "data"}]
    assert merged(*mounts) == [*mounts[0], *mounts[1]]


def test_a_try_has_one_pod_and_each_of_its_tickets_a_secret():
    first, repeated, again = job_of({}), job_of({}), job_of({}, secret="s2")
    names = [name_of(one.ticket) for one in (first, repeated, again, job_of({}, token="two"))]
    assert names[0] == names[1] == names[2] != names[3]
    assert names[0].startswith("etl-1-load-")
    assert secret_name_of(first) == secret_name_of(repeated) != secret_name_of(again)
    assert ticket_secret(pod_of(first, TEMPLATE)) == secret_of(first)["metadata"]["name"]


def test_the_label_of_pods_does_not_depend_on_the_order_of_addresses():
    assert label_of(("http://a", "http://b")) == label_of(("http://b/", "http://a")) != label_of(("http://a",))


def test_pods_of_a_dag_and_a_manifest_have_a_shape_unless_it_has_a_deadline():
    red = {"spec": {"containers": [{"name": "base", "env": [{"name": "COLOUR", "value": "red"}]}]}}
    plain = shape_in(pod_of(job_of({}), TEMPLATE))
    assert plain == shape_in(pod_of(job_of({}, token="two", secret="s2"), TEMPLATE))
    others = [
        shape_in(pod_of(overridden(**red), TEMPLATE)),
        shape_in(pod_of(job_of({}), checked_template({}, "another image"))),
        shape_in(pod_of(replace(job_of({}), ticket=replace(job_of({}).ticket, dag_id="other")), TEMPLATE)),
    ]
    assert len({plain, *others}) == 4
    forged = {"metadata": {"annotations": {SHAPE: plain}}, "spec": {"activeDeadlineSeconds": 5}}
    assert shape_in(pod_of(overridden(**forged), TEMPLATE)) == ""
