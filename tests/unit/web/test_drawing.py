"""The places of nodes and edges in a graph, and groups that are folded."""

from asynsched import DAG, TaskGroup, task
from asynsched.queries.grid import GridCell
from asynsched.serialization.encode import serialize_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.web.pages.drawing.folding import MOST_OPEN_TASKS, Folding
from asynsched.web.pages.drawing.graph import Box, Link, draw
from asynsched.web.pages.drawing.tasks import Group, task_graph


def nested() -> SerializedDag:
    """Return a DAG with the tasks a, outer.b, outer.inner.c, outer.inner.d and e, each after the one before."""
    with DAG("d", schedule=None) as dag:

        @task
        def step():
            pass

        def named(name):
            return step.override(task_id=name)()

        first = named("a")
        with TaskGroup("outer"):
            second = named("b")
            with TaskGroup("inner"):
                third, fourth = named("c"), named("d")
        first >> second >> third >> fourth >> named("e")
    return serialize_dag(dag)


def drawn_of(folded: set[str]) -> tuple[list[str], set[tuple[str, str]], list[Group]]:
    cells = {"a": GridCell("success"), "outer.inner.c": GridCell("failed"), "outer.inner.d": GridCell("success")}
    made = task_graph(nested(), folded.__contains__, cells, task_at=lambda _: None, group_at=lambda _: "open")
    kinds = {box.id: box.kind for box in made.boxes}
    assert kinds.get("outer.inner", "group failed") == "group failed"
    return sorted(kinds), {(link.source, link.target) for link in made.links}, made.groups


def test_a_folded_group_is_one_node_with_the_edges_of_its_tasks():
    names, edges, groups = drawn_of(set())
    assert names == ["a", "e", "outer.b", "outer.inner.c", "outer.inner.d"]
    assert groups == [Group("outer", 0, 3, False, False), Group("outer.inner", 1, 2, False, False)]
    names, edges, groups = drawn_of({"outer.inner"})
    assert names == ["a", "e", "outer.b", "outer.inner"]
    assert edges == {("a", "outer.b"), ("outer.b", "outer.inner"), ("outer.inner", "e")}
    names, edges, groups = drawn_of({"outer", "outer.inner"})
    assert (names, edges) == (["a", "e", "outer"], {("a", "outer"), ("outer", "e")})
    assert [group.is_hidden for group in groups] == [False, True]


def test_groups_of_a_large_dag_are_folded_unless_the_address_says_otherwise():
    small, large = SerializedDag("d", {}), SerializedDag("d", {}, tasks=nested().tasks * MOST_OPEN_TASKS)
    assert [Folding.of(dag, "", ()).is_folded("g") for dag in (small, large)] == [False, True]
    assert [Folding.of(large, "open", ("g",)).is_folded(name) for name in ("g", "h")] == [True, False]
    turned = Folding.of(large, "", ("g",)).turned("h")
    assert turned == {"groups": "folded", "but": ["g", "h"]}
    assert Folding.of(small, turned["groups"], tuple(turned["but"])).turned("g") == {"groups": "folded", "but": ["h"]}


def test_nodes_do_not_overlap_and_one_edge_of_a_cycle_points_backwards():
    boxes = [Box(name, name, name) for name in "abcdef"]
    links = [Link("a", "b"), Link("b", "c"), Link("c", "a"), Link("a", "d"), Link("d", "d"), Link("e", "missing")]
    drawn = draw(boxes, links)
    assert [edge.is_back for edge in drawn.edges] == [False, False, True, False]
    places = {node.box.id: (node.x, node.y) for node in drawn.nodes}
    assert len({*places.values()}) == len(boxes)
    assert places["a"][0] < places["b"][0] < places["c"][0]
    assert all(0 < x < drawn.width and 0 < y < drawn.height for x, y in places.values())
    assert draw([], []).nodes == []


def test_the_nodes_of_a_group_are_framed_unless_another_one_is_between_them():
    boxes = [Box(name, name, name, frame="g" if name in "bc" else "") for name in "abcd"]
    assert [frame.group for frame in draw(boxes, [Link("a", "b"), Link("b", "c"), Link("c", "d")]).frames] == ["g"]
    between = [Box(name, name, name, frame="g" if name in "ac" else "") for name in "abc"]
    assert draw(between, [Link("a", "b"), Link("b", "c")]).frames == []
