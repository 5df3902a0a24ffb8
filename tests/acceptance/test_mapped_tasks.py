"""Mapped tasks in real runs: expanded by the scheduler, resolved in processes of their own, shown by the commands."""

from tests.conformance.mapping_text import CASES, HEADER, dag_id_of, dag_text

DATABASES = ("sqlite",)

SAMPLE = {
    "cross-literal-upstream": ("m", 2),
    "expand_kwargs-partial": ("m", 1),
    "upstream-unmappable-1": None,
    "second-order-fail-all_done": ("n", 1),
    "reduce-skip-none_failed": ("r", -1),
    "map-skip_odd": None,
    "map_index_template": None,
    "group-reduce": ("r", -1),
    "group-mixed-one_success": None,
    "group-empty-literal": None,
}
"""Observed cases, one for each way to map; and an instance whose arguments are checked."""


def instances(site, run):
    found = []
    for task in site.json("tasks", "list", run["dag_id"], run["run_id"]):
        shown = {"task": task["task_id"], "map_index": task["map_index"], "state": task["state"]}
        if task["try_number"] > 1:
            shown["tries"] = task["try_number"]
        if task["rendered_map_index"] is not None:
            shown["rendered_map_index"] = task["rendered_map_index"]
        found.append(shown)
    return sorted(found, key=lambda one: (one["task"], one["map_index"]))


def received(site, run, instance):
    """Return the arguments of an instance's last try."""
    place = (run["dag_id"], run["run_id"], instance["task"], "--map-index", str(instance["map_index"]))
    return {entry["key"]: entry["value"] for entry in site.json("tasks", "xcom", *place)}["args"]


def test_cases_of_every_kind_come_out_of_real_runs_as_airflow_had_them(new_site):
    site = new_site()
    cases = [case for case in CASES if case["id"] in SAMPLE]
    assert len(cases) == len(SAMPLE)
    site.write("cases.py", HEADER + "\n".join(dag_text(case, schedule="@once") for case in cases))
    site.up_until_idle()
    runs = {run["dag_id"]: run for run in site.json("runs", "list")}
    for case in cases:
        run = runs[dag_id_of(case)]
        wanted = sorted(map(dict, case["expect"]["instances"]), key=lambda one: (one["task"], one["map_index"]))
        args = [one.pop("args", None) for one in wanted]
        assert (run["state"], instances(site, run)) == (case["expect"]["run_state"], wanted), case["id"]
        for one, given in zip(wanted, args, strict=True):
            if (one["task"], one["map_index"]) == SAMPLE[case["id"]]:
                assert received(site, run, one) == given, case["id"]


def test_a_cleared_task_that_returns_another_length_changes_the_instances(new_site):
    site = new_site()
    site.write(
        "lengths.py",
        f"""
        from pathlib import Path

        from asynsched import DAG, task, task_group

        with DAG("lengths", schedule="@once"):
            @task
            def count():
                return list(range(int(Path({str(site.root / "n")!r}).read_text())))

            @task
            def double(x):
                return 2 * x

            @task(trigger_rule="all_done")
            def total(xs):
                return sum(xs)

            @task_group
            def group(v):
                return double(double(v))

            counted = count()
            total(double.expand(x=counted))
            group.expand(v=counted)
        """,
    )
    for n, expected in ((2, 2), (0, 0), (1, 0), (3, 6)):
        (site.root / "n").write_text(str(n))
        if n == 2:
            site.up_until_idle()
            [run] = site.runs("lengths")
        else:
            site.run("tasks", "clear", "lengths", run["run_id"], "count", "--downstream", "--yes")
            site.up_until_idle()
        found = site.json("tasks", "list", "lengths", run["run_id"])
        for task_id in ("double", "group.double", "group.double__1"):
            states = {one["map_index"]: one["state"] for one in found if one["task_id"] == task_id}
            assert states == {index: "success" if index < n else "removed" for index in range(max(n, len(states)))}
        entries = site.json("tasks", "xcom", "lengths", run["run_id"], "total")
        assert [entry["value"] for entry in entries] == [expected]
