"""The conditions to which an exploration may be narrowed, so that many seeds show effects that are rare otherwise."""

from dataclasses import dataclass

STORES = frozenset({"apply_and_pause", "_store"})
"""The queries by which schedulers store their decisions: alone, and beside others."""
CALLBACKS = frozenset({"take_callback", "finish_callback"})
"""Those that begin and end callbacks."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of an exploration: those that are not given are as its seed says.

    Attributes:
        faults: The frequent faults; nothing else fails then, people only trigger runs, and leases are short.
        crashes_at: The queries at which schedulers crash; none: wherever they ask the database.
        n_sites: How many schedulers there are; 0: as the seed says.
        people: The one thing that people do, beside triggering runs: a name of `people.ACTIONS`.
        dag_id: The one DAG that people trigger: not every world has each.
        is_remote: Tasks run on other machines, which otherwise happens only if nothing else is given.
    """

    faults: tuple[str, ...] = ()
    crashes_at: frozenset[str] = frozenset()
    n_sites: int = 0
    people: str = ""
    dag_id: str = ""
    is_remote: bool = False


AS_THE_SEED_SAYS = Conditions()
