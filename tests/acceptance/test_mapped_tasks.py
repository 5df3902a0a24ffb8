"""Mapped tasks in real runs: expanded by the scheduler, resolved in processes of their own, shown by the commands."""

from tests.conformance.mapping_text import CASES, HEADER, dag_id_of, dag_text

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
"""Cases of the observed ones, for each way to map one; and an instance of which is looked at what it was given."""


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
    """Return what the last try of an instance was given."""
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
