"""What a DAG's access_control allows."""

import pytest

from asynsched import DAG
from asynsched.errors import DagError
from asynsched.serialization.encode import serialize_dag

GOOD = (
    (None, {}),
    ({}, {}),
    ({"team": {"can_read"}}, {"team": "view"}),
    ({"team": ["can_read", "can_edit"], "audit": ("can_read",)}, {"audit": "view", "team": "operate"}),
    ({"team": {"DAGs": {"can_read"}, "DAG Runs": {"can_create"}}}, {"team": "operate"}),
    ({"team": set()}, {}),
)
WRONG = (
    (["team"], "must be a dict of roles"),
    ({"team": "can_read"}, "must be a set of permissions"),
    ({"team": {"can_raed"}}, "unknown permission 'can_raed'; there are can_read"),
    ({"team": {"Pools": {"can_read"}}}, "unknown resource 'Pools'; there are DAGs, DAG Runs"),
    ({7: {"can_read"}}, "a role is a name, not 7"),
)


@pytest.mark.parametrize(("given", "stored"), GOOD, ids=lambda one: str(one))
def test_the_most_that_a_role_may_is_stored_with_the_dag(given, stored):
    assert serialize_dag(DAG("d", access_control=given)).access_control == stored


@pytest.mark.parametrize(("given", "message"), WRONG, ids=lambda one: str(one))
def test_a_mistake_that_might_open_a_dag_is_an_error_of_the_dag(given, message):
    with pytest.raises((DagError, TypeError)) as caught:
        serialize_dag(DAG("d", access_control=given))
    assert "access_control" in str(caught.value)
    if isinstance(given, dict):
        assert message in str(caught.value)
