"""A graph as SVG, in layers from left to right: a DAG's tasks, assets with their DAGs, or a change of a DAG.

A node's layer is the length of the longest path to it; of a cycle, one edge points backwards. Edges over several layers
pass through points in between, which are ordered like nodes, so that edges go around nodes. The order within a layer
follows the mean place of the neighbours (the barycenter heuristic of Sugiyama, Tagawa and Toda, 1981).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from asynsched.web.pages.showing import shortened

NODE_HEIGHT, ROW_STEP, LAYER_GAP = 30, 48, 56
LETTER_WIDTH, MOST_LETTERS, PADDING, SIGN_WIDTH = 7.2, 34, 26, 14
MARGIN = 16
SWEEPS = 8
MOST_POINTS = 20_000
"""Points of long edges; in a graph with more of them, edges are straight."""


class Box(NamedTuple):
    """A node before it has a place.

    Attributes:
        name: What it shows; a long one is shortened.
        title: Its hint, for pointers and screen readers.
        kind: The class of its colours.
        sign: Of its state.
        href: Where it leads; None: nowhere.
        is_stack: Whether it stands for several things.
        frame: The group that it is drawn in; empty: none.
    """

    id: str
    name: str
    title: str
    kind: str = "plain"
    sign: str = ""
    href: str | None = None
    is_stack: bool = False
    frame: str = ""


class Link(NamedTuple):
    """An edge before it has a place."""

    source: str
    target: str
    label: str = ""
    kind: str = ""


class Node(NamedTuple):
    """A node in the picture."""

    x: float
    y: float
    width: int
    box: Box


class Edge(NamedTuple):
    """A path between two nodes, and the edge's label with its place. `is_back`: its end is at the path's start."""

    path: str
    label: str
    label_x: float
    label_y: float
    kind: str
    is_back: bool


class Frame(NamedTuple):
    """A rectangle around the nodes of a group."""

    x: float
    y: float
    width: float
    height: float
    group: str


class DrawnGraph(NamedTuple):
    """The picture. `frames`: of the groups between whose nodes there is no other one."""

    width: float
    height: float
    nodes: list[Node]
    edges: list[Edge]
    frames: list[Frame] = []  # noqa: RUF012 - of a NamedTuple


_Point = tuple[str, int]
"""The id of a node with -1, or a point of an edge: the edge's name and the layer."""


def draw(boxes: Sequence[Box], links: Iterable[Link]) -> DrawnGraph:
    """Return the picture of nodes and the links between them; other links are left out."""
    ids = {box.id for box in boxes}
    shown = [link for link in links if link.source in ids and link.target in ids and link.source != link.target]
    layer_of = _layers([box.id for box in boxes], shown)
    ends = [sorted((link.source, link.target), key=layer_of.__getitem__) for link in shown]
    routes = _routes(ends, layer_of)
    frame_of = {box.id: box.frame for box in boxes}
    layers = _ordered(layer_of, routes, frame_of)
    rows = _rows(layers, routes)
    width_of = {box.id: _width(box) for box in boxes}
    widths = [max((width_of[name] for name, at in layer if at < 0), default=PADDING) for layer in layers]
    lefts, x = [], float(MARGIN)
    for width in widths:
        lefts.append(x)
        x += width + LAYER_GAP
    tops = {point: MARGIN + row * ROW_STEP for point, row in rows.items()}
    nodes = [Node(lefts[layer_of[box.id]], tops[box.id, -1], width_of[box.id], box) for box in boxes]
    places = _Places(layer_of, lefts, widths, width_of, tops)
    edges = [
        _edge(route, places, link, is_back=route[0][0] != link.source)
        for route, link in zip(routes, shown, strict=True)
    ]
    height = max(tops.values(), default=0) + NODE_HEIGHT + MARGIN
    return DrawnGraph(max(x - LAYER_GAP, 0) + MARGIN, height, nodes, edges, _frames(nodes))


def _layers(ids: Sequence[str], links: Sequence[Link]) -> dict[str, int]:
    """Return the layer of each node. Where only cycles are left, the first node of the given order goes first."""
    targets: dict[str, list[str]] = {name: [] for name in ids}
    n_before = dict.fromkeys(ids, 0)
    for link in links:
        targets[link.source].append(link.target)
        n_before[link.target] += 1
    layers = dict.fromkeys(ids, 0)
    ready, left = deque(name for name in ids if not n_before[name]), dict.fromkeys(ids)
    while left:
        name = ready.popleft() if ready else next(iter(left))
        if name not in left:
            continue
        del left[name]
        for other in targets[name]:
            if other in left:
                layers[other] = max(layers[other], layers[name] + 1)
                n_before[other] -= 1
                if not n_before[other]:
                    ready.append(other)
    return layers


def _routes(ends: Sequence[Sequence[str]], layers: Mapping[str, int]) -> list[list[_Point]]:
    n_points = sum(layers[end] - layers[start] - 1 for start, end in ends)
    between = range if n_points <= MOST_POINTS else lambda *_: range(0)
    return [
        [(start, -1), *((f"{start}\n{end}", layer) for layer in between(layers[start] + 1, layers[end])), (end, -1)]
        for start, end in ends
    ]


def _ordered(
    layer_of: Mapping[str, int], routes: list[list[_Point]], frame_of: Mapping[str, str]
) -> list[list[_Point]]:
    """Return the points of each layer, from top to bottom. The nodes of a frame stay together."""
    layers: list[list[_Point]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for task_id, number in layer_of.items():
        layers[number].append((task_id, -1))
    for route in routes:
        for point in route[1:-1]:
            layers[point[1]].append(point)
    before, after = _neighbours(routes)
    for sweep in range(SWEEPS):
        neighbours = before if sweep % 2 == 0 else after
        places = {point: place for layer in layers for place, point in enumerate(layer)}
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            means = {
                point: _mean([places[other] for other in neighbours.get(point, ())], places[point]) for point in layer
            }
            layer.sort(key=_together(means, frame_of))
            places.update({point: place for place, point in enumerate(layer)})
    return layers


def _together(means: Mapping[_Point, float], frame_of: Mapping[str, str]) -> Callable[[_Point], tuple[Any, ...]]:
    """Return the key that sorts points by their means, and the nodes of a frame by the mean of all of them first."""
    of_frame: dict[str, list[float]] = {}
    for (name, _), mean in means.items():
        if frame := frame_of.get(name):
            of_frame.setdefault(frame, []).append(mean)
    mean_of = {frame: sum(found) / len(found) for frame, found in of_frame.items()}

    def key(point: _Point) -> tuple[Any, ...]:
        frame = frame_of.get(point[0], "")
        return mean_of.get(frame, means[point]), frame, means[point]

    return key


def _neighbours(routes: list[list[_Point]]) -> tuple[dict[_Point, list[_Point]], dict[_Point, list[_Point]]]:
    before: dict[_Point, list[_Point]] = {}
    after: dict[_Point, list[_Point]] = {}
    for route in routes:
        for left, right in pairwise(route):
            before.setdefault(right, []).append(left)
            after.setdefault(left, []).append(right)
    return before, after


def _rows(layers: list[list[_Point]], routes: list[list[_Point]]) -> dict[_Point, float]:
    """Return the row of each point: near its neighbours, at least one row below the point above it."""
    before, after = _neighbours(routes)
    rows = {point: float(place) for layer in layers for place, point in enumerate(layer)}
    for sweep in range(SWEEPS):
        neighbours = before if sweep % 2 == 0 else after
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = [_mean([rows[other] for other in neighbours.get(point, ())], rows[point]) for point in layer]
            rows.update(zip(layer, _spread(wanted), strict=True))
    least = min(rows.values(), default=0.0)
    return {point: row - least for point, row in rows.items()}


def _spread(wanted: list[float]) -> list[float]:
    """Return ascending places with gaps of at least 1, as near as possible to the wanted ones.

    Neighbours that would overlap form a block, which lies at the mean of what its members want.
    """
    blocks: list[tuple[float, int]] = []  # the sum of the members' wanted starts, and their number
    for place, want in enumerate(wanted):
        total, size = want - place, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / size:
            earlier, n = blocks.pop()
            total, size = total + earlier, size + n
        blocks.append((total, size))
    starts = [total / size for total, size in blocks for _ in range(size)]
    return [start + place for place, start in enumerate(starts)]


def _mean(values: list[float] | list[int], default: float) -> float:
    return sum(values) / len(values) if values else default


def _width(box: Box) -> int:
    return round(LETTER_WIDTH * min(len(box.name), MOST_LETTERS)) + PADDING + (SIGN_WIDTH if box.sign else 0)


class _Places(NamedTuple):
    layer_of: Mapping[str, int]
    lefts: Sequence[float]
    widths: Sequence[int]
    width_of: Mapping[str, int]
    tops: Mapping[_Point, float]


def _edge(route: list[_Point], places: _Places, link: Link, *, is_back: bool) -> Edge:
    layer_of, lefts, tops = places.layer_of, places.lefts, places.tops
    (start, _), (end, _) = route[0], route[-1]
    middle = NODE_HEIGHT / 2
    x, y = lefts[layer_of[start]] + places.width_of[start], tops[start, -1] + middle
    path = [f"M{x:.0f} {y:.0f}"]
    for point in route[1:]:
        layer = point[1] if point[1] >= 0 else layer_of[end]
        to_x, to_y = lefts[layer], tops[point] + middle
        bend = (to_x - x) / 2
        path.append(f"C{x + bend:.0f} {y:.0f} {to_x - bend:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}")
        x, y = to_x, to_y
        if point[1] >= 0:
            x += places.widths[layer]
            path.append(f"H{x:.0f}")
    first = tops[route[1]] + middle
    label_x = (lefts[layer_of[start]] + places.width_of[start] + lefts[min(layer_of[start] + 1, len(lefts) - 1)]) / 2
    label_y = (tops[start, -1] + middle + first) / 2
    return Edge("".join(path), shortened(link.label, 24), label_x, label_y, link.kind, is_back)


FRAME_PADDING = 6


def _frames(nodes: Sequence[Node]) -> list[Frame]:
    members: dict[str, list[Node]] = {}
    for node in nodes:
        if node.box.frame:
            members.setdefault(node.box.frame, []).append(node)
    return [frame for group, found in members.items() if (frame := _frame(group, found, nodes)) is not None]


def _frame(group: str, members: Sequence[Node], nodes: Sequence[Node]) -> Frame | None:
    left, top = min(node.x for node in members), min(node.y for node in members)
    right = max(node.x + node.width for node in members)
    bottom = max(node.y + NODE_HEIGHT for node in members)
    for node in nodes:
        is_beside = node.x > right or node.x + node.width < left or node.y > bottom or node.y + NODE_HEIGHT < top
        if node.box.frame != group and not is_beside:
            return None
    pad = FRAME_PADDING
    return Frame(left - pad, top - pad, right - left + 2 * pad, bottom - top + 2 * pad, group)
