"""Which task groups of a view are folded: all or none of them, with exceptions. The address of the view says so."""

from typing import Any, Literal, NamedTuple, Self

from asynsched.serialization.schema import SerializedDag

MOST_OPEN_TASKS = 150
"""In a DAG with more tasks, groups are folded unless the address says otherwise."""
State = Literal["", "open", "folded"]


class Folding(NamedTuple):
    """The state of all groups; those in `but` are in the opposite state."""

    state: State
    but: frozenset[str]

    @classmethod
    def of(cls, dag: SerializedDag, state: State, but: tuple[str, ...]) -> Self:
        """Return the folding that an address asks for; without `groups` in it, the default of the DAG."""
        usual: State = "folded" if len(dag.tasks) > MOST_OPEN_TASKS else "open"
        return cls(state or usual, frozenset(but))

    def is_folded(self, group_id: str) -> bool:
        """Return whether a group is folded."""
        return (self.state == "folded") is not (group_id in self.but)

    @property
    def query(self) -> dict[str, Any]:
        """The part of an address that says the same."""
        return {"groups": self.state, "but": sorted(self.but)}

    def turned(self, group_id: str) -> dict[str, Any]:
        """Return the part of an address that says the same but for one group, which it opens or folds."""
        return self._replace(but=self.but ^ {group_id}).query
