"""The nodes and edges of the graph of assets: DAGs update assets, and assets trigger DAGs."""

from collections.abc import Callable, Collection, Mapping, Sequence

from asynsched.queries.assets import AssetInfo
from asynsched.store.assets import OUTLET, SCHEDULE
from asynsched.web.pages.drawing.graph import MOST_LETTERS, Box, Link
from asynsched.web.pages.showing import count, shortened


def asset_node(name: str) -> str:
    """Return the id of an asset's node."""
    return f"asset:{name}"


def dag_node(dag_id: str) -> str:
    """Return the id of a DAG's node."""
    return f"dag:{dag_id}"


def assets_and_dags(
    assets: Sequence[AssetInfo], n_events: Mapping[int, int], waiting: Collection[tuple[int, str]], *,
    dag_at: Callable[[str], str], asset_at: Callable[[str], str],
) -> tuple[list[Box], list[Link]]:  # fmt: skip
    """Return the graph. An inlet that triggers nothing has a dashed edge, as has an event that waits for others.

    Args:
        n_events: The events of the last day, by the asset's id.
        waiting: The asset's id and the DAG of the events that wait for those of other assets.
    """
    boxes: dict[str, Box] = {}
    links: dict[tuple[str, str], Link] = {}
    for asset in assets:
        node, n = asset_node(asset.name), n_events.get(asset.id, 0)
        title = f"{asset.name}: {count(n, 'event')} in 24 h"
        name = f"{shortened(asset.name, MOST_LETTERS - 6)} ({n})"
        has_producer = any(one.role == OUTLET for one in asset.references) or bool(asset.aliases or asset.watchers)
        kind = "asset" if has_producer or n else "asset missing"
        boxes[node] = Box(node, name, title if kind == "asset" else f"{title}; nothing here updates it", kind, "◆",
                          asset_at(asset.name))  # fmt: skip
        for one in asset.references:
            dag = dag_node(one.dag_id)
            short = shortened(one.dag_id, MOST_LETTERS)
            boxes.setdefault(dag, Box(dag, short, f"The DAG {one.dag_id}", "plain", "", dag_at(one.dag_id)))
            if one.role == OUTLET:
                links[dag, node] = Link(dag, node)
            elif one.role == SCHEDULE:
                waits = (asset.id, one.dag_id) in waiting
                links[node, dag] = Link(node, dag, "waits" if waits else "", "waiting" if waits else "")
            else:
                links.setdefault((node, dag), Link(node, dag, "read", "waiting"))
    return list(boxes.values()), list(links.values())


def connected(boxes: Sequence[Box], links: Sequence[Link], node: str) -> tuple[list[Box], list[Link]]:
    """Return the part of a graph that is connected with a node; nothing if there is no such node."""
    beside: dict[str, list[str]] = {box.id: [] for box in boxes}
    for link in links:
        beside[link.source].append(link.target)
        beside[link.target].append(link.source)
    found, todo = set[str](), [node] if node in beside else []
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += beside[one]
    return [box for box in boxes if box.id in found], [link for link in links if link.source in found]
