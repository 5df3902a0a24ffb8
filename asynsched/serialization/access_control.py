"""What a DAG's `access_control` allows to the users of a role, in Airflow's words and in ours."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from asynsched.errors import DagError

DagPermission = Literal["view", "operate"]
RESOURCES = ("DAGs", "DAG Runs")
"""Airflow's names of what a role gets rights to; here, both together."""
PERMISSIONS: Mapping[str, DagPermission] = {
    "can_read": "view",
    "menu_access": "view",
    "can_edit": "operate",
    "can_create": "operate",
    "can_delete": "operate",
}


def permissions_of(dag_id: str, access_control: Any) -> dict[str, DagPermission]:
    """Return the most that the users of each role may do with a DAG.

    Args:
        access_control: Of the DAG: by role, permissions such as `{"can_read", "can_edit"}`, or those by resource.

    Raises:
        DagError: It has another form, or an unknown permission or resource: the mistake might open the DAG.
    """
    if access_control is None:
        return {}
    who = f"DAG {dag_id!r}: access_control"
    if not isinstance(access_control, Mapping):
        raise DagError(f"{who} must be a dict of roles, not {access_control!r:.100}")
    found: dict[str, DagPermission] = {}
    for role, given in access_control.items():
        if not isinstance(role, str) or not role:
            raise DagError(f"{who}: a role is a name, not {role!r:.100}")
        names = _names(f"{who} of {role!r}", given)
        if names:
            found[role] = "operate" if any(PERMISSIONS[name] == "operate" for name in names) else "view"
    return dict(sorted(found.items()))


def _names(who: str, given: Any) -> list[str]:
    """Return the names of permissions, whatever they are given for. Raises DagError."""
    if isinstance(given, Mapping):
        if unknown := [resource for resource in given if resource not in RESOURCES]:
            raise DagError(f"{who} has the unknown resource {unknown[0]!r:.100}; there are {', '.join(RESOURCES)}")
        return [name for names in given.values() for name in _names(who, names)]
    if isinstance(given, str) or not isinstance(given, Collection):
        raise DagError(f"{who} must be a set of permissions, not {given!r:.100}")
    for name in given:
        if name not in PERMISSIONS:
            raise DagError(f"{who} has the unknown permission {name!r:.100}; there are {', '.join(PERMISSIONS)}")
    return list(given)
