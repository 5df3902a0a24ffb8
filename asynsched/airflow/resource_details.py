"""Descriptions of the resources that Airflow's auth managers protect.

They are only data: asynsched has no users and roles.
"""

from __future__ import annotations

from collections import namedtuple


def _details(name: str, fields: str) -> type:
    n = len(fields.split())
    return namedtuple(name, fields, defaults=(None,) * n, module=__name__)


AssetAliasDetails = _details("AssetAliasDetails", "id")
AssetDetails = _details("AssetDetails", "id")
BackfillDetails = _details("BackfillDetails", "id")
ConfigurationDetails = _details("ConfigurationDetails", "section")
ConnectionDetails = _details("ConnectionDetails", "conn_id team_name")
DagDetails = _details("DagDetails", "id team_name")
PoolDetails = _details("PoolDetails", "name team_name")
TeamDetails = _details("TeamDetails", "name")
VariableDetails = _details("VariableDetails", "key team_name")
