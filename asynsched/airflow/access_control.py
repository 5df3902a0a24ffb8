"""The words of `access_control`, and AssetAccessControl: asynsched has no teams, so that has no effect."""

from __future__ import annotations

ACTION_CAN_CREATE = "can_create"
ACTION_CAN_READ = "can_read"
ACTION_CAN_EDIT = "can_edit"
ACTION_CAN_DELETE = "can_delete"
ACTION_CAN_ACCESS_MENU = "menu_access"
DAG_ACTIONS = {ACTION_CAN_READ, ACTION_CAN_EDIT, ACTION_CAN_DELETE}
RESOURCE_DAG = "DAGs"
RESOURCE_DAG_PREFIX = "DAG:"
RESOURCE_DAG_RUN = "DAG Runs"


class AssetAccessControl:
    """The teams of an asset's producers and consumers, as Airflow's files name them.

    Args:
        producer_teams: Of DAGs that may update the asset.
        consumer_teams: Of DAGs that may wait for it; None for all.
        allow_global: Whether DAGs without a team may update it.

    Raises:
        ValueError: A team's name is not a string, or empty.
    """

    def __init__(
        self,
        producer_teams: list[str] | None = None,
        consumer_teams: list[str] | None = None,
        allow_global: bool = True,
    ) -> None:
        for teams in (producer_teams or [], consumer_teams or []):
            if not isinstance(teams, list) or not all(isinstance(team, str) and team for team in teams):
                raise ValueError(f"the teams of an asset are a list of names, not {teams!r:.100}")
        self.producer_teams = producer_teams or []
        self.consumer_teams = consumer_teams
        self.allow_global = allow_global
