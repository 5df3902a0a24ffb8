"""Assets end to end: updated by real tasks, by commands and by programs; heard of at once; read by the tasks behind."""

import pytest

from tests.support.up import Site

DATABASES = ("postgresql",)

PIPELINE = """
    from asynsched import DAG, Asset, AssetAlias, BashOperator, Metadata, asset, task

    orders = Asset("orders", uri="s3://shop/orders/", extra={"owner": "shop"})
    refunds = Asset("refunds")
    files = AssetAlias("files")

    with DAG("produce", schedule=None):

        @task(outlets=[orders, refunds])
        def update(*, outlet_events):
            outlet_events[orders].extra["rows"] = 3
            yield Metadata(refunds, {"rows": 1})
            return "what produce returned"

        @task(outlets=[files])
        def through_alias(*, outlet_events):
            outlet_events[files].add(Asset("found/file.csv"), extra={"size": 7})

        @task(outlets=[Asset("never")])
        def fails():
            raise ValueError("no update")

        update() >> through_alias() >> fails()

    with DAG("consume", schedule=(orders & refunds) | Asset("by hand")):

        @task
        def read(*, triggering_asset_events, dag_run, ti, logical_date=None):
            seen = {}
            for asset, events in triggering_asset_events.items():
                for event in events:
                    source, run = event.source_task_instance, event.source_dag_run
                    seen[asset.name] = [event.extra, event.source_dag_id, source and source.xcom_pull()]
                    seen[asset.name].append(run and run.run_type)
            return {"seen": seen, "dates": [dag_run.logical_date, logical_date], "type": dag_run.run_type}

        rendered = BashOperator(
            task_id="rendered",
            bash_command="echo '{% for asset, events in triggering_asset_events.items() %}"
            "{{ asset.uri }} {{ (events | first).extra.rows }};{% endfor %}'",
        )
        read() >> rendered

    with DAG("of_alias", schedule=[files]):

        @task(inlets=[orders, files])
        def past(*, inlet_events):
            newest = inlet_events[orders].ascending(False).limit(1)
            return [
                [event.extra for event in newest],
                [event.asset.name for event in inlet_events[files]],
                inlet_events[0].after("2100-01-01")[:],
                len(inlet_events),
            ]

        past()

    @asset(schedule=files, uri="s3://shop/raw", extra={"by": "raw"})
    async def raw(self, context, limit=2):
        context["outlet_events"][self].extra = {"limit": limit}

    @asset(schedule=raw)
    def clean(raw, context):
        [event] = context["triggering_asset_events"][raw]
        past = context["inlet_events"][raw]
        return [raw.uri, raw.extra, event.extra, len(past)]
"""


@pytest.fixture(scope="module")
def site(new_site) -> Site:
    """Return a site on which `produce` ran, and then a command updated an asset."""
    site = new_site()
    site.write("pipeline.py", PIPELINE)
    with site.up():
        site.wait_for_dag("produce")
        site.run("dags", "trigger", "produce", "--wait", code=1)
        site.until(
            lambda: all(ended(site, dag_id, 1) for dag_id in ("of_alias", "consume", "clean")),
            "the DAGs that wait for assets have run",
        )
        said = site.run("assets", "event", "by hand", "--extra", '{"rows": 9}').stdout
        assert said == "Asset 'by hand' was updated. It waits for consume.\n"
        site.until(lambda: ended(site, "consume", 2), "the command has triggered a run")
    return site


def ended(site: Site, dag_id: str, n: int) -> bool:
    return [run["state"] for run in site.runs(dag_id)] == ["success"] * n


def result(site: Site, dag_id: str, run_id: str, task_id: str):
    values = {item["key"]: item["value"] for item in site.json("tasks", "xcom", dag_id, run_id, task_id)}
    return values["return_value"]


def test_a_task_reads_what_triggered_its_run(site):
    by_hand, by_tasks = site.runs("consume")
    assert result(site, "consume", by_tasks["run_id"], "read") == {
        "seen": {
            "orders": [{"rows": 3}, "produce", "what produce returned", "manual"],
            "refunds": [{"rows": 1}, "produce", "what produce returned", "manual"],
        },
        "dates": [None, None],
        "type": "asset_triggered",
    }
    assert result(site, "consume", by_tasks["run_id"], "rendered") == "s3://shop/orders 3;refunds 1;"
    assert result(site, "consume", by_hand["run_id"], "read")["seen"] == {"by hand": [{"rows": 9}, None, None, None]}


def test_a_run_shows_its_events_and_has_no_dates_of_a_schedule(site):
    run = site.json("runs", "show", "consume", site.runs("consume")[-1]["run_id"])
    assert [(event["name"], event["extra"], event["source_task_id"]) for event in run["asset_events"]] == [
        ("orders", {"rows": 3}, "update"),
        ("refunds", {"rows": 1}, "update"),
    ]
    assert (run["logical_date"], run["data_interval_start"]) == (None, None)
    assert run["run_id"] == f"asset_triggered__{run['run_after'].replace('Z', '+00:00')}"


def test_a_task_reads_earlier_events_of_its_inlets(site):
    [run] = site.runs("of_alias")
    assert result(site, "of_alias", run["run_id"], "past") == [[{"rows": 3}], ["found/file.csv"], [], 2]


def test_a_function_is_an_asset_and_is_given_those_that_it_names(site):
    [run] = site.runs("clean")
    expected = ["s3://shop/raw", {"by": "raw"}, {"limit": 2}, 1]
    assert result(site, "clean", run["run_id"], "clean") == expected


def test_commands_show_assets_aliases_and_events(site):
    assets = {asset["name"]: asset for asset in site.json("assets", "list")}
    assert set(assets) == {"orders", "refunds", "never", "by hand", "found/file.csv", "raw", "clean"}
    naming = {(reference["role"], reference["dag_id"]) for reference in assets["orders"]["references"]}
    assert naming >= {("outlet", "produce"), ("schedule", "consume")}
    assert assets["never"]["last_event_at"] is None
    assert site.json("assets", "list", "--alias") == [{"name": "files", "group": "asset", "assets": ["found/file.csv"]}]
    table = site.run("assets", "list").stdout
    assert "updated_by" in table
    assert "awaited_by" in table
    shown = site.json("assets", "show", "s3://shop/orders")
    assert (shown["name"], shown["extra"], shown["waiting_dags"]) == ("orders", {"owner": "shop"}, [])
    roles = [(reference["role"], reference["dag_id"], reference["task_id"]) for reference in shown["references"]]
    assert roles == [("inlet", "of_alias", "past"), ("outlet", "produce", "update"), ("schedule", "consume", "")]
    assert [event["name"] for event in site.json("assets", "events", "--limit", "1")] == ["by hand"]
    [event] = site.json("assets", "events", "--alias", "files")
    assert (event["name"], event["extra"], event["aliases"]) == ("found/file.csv", {"size": 7}, ["files"])


def test_wrong_commands_say_what_is_wrong(site):
    assert "did you mean" in site.run("assets", "show", "order", code=1).stderr.lower()
    assert "not a JSON object" in site.run("assets", "event", "orders", "--extra", "[1]", code=2).stderr
    assert "There is no DAG that updates the asset" in site.run("assets", "materialize", "by hand", code=1).stderr


def test_an_asset_is_materialized_by_the_one_dag_that_updates_it(site):
    run = site.json("assets", "materialize", "refunds")
    assert (run["dag_id"], run["run_type"], run["state"]) == ("produce", "manual", "queued")


def test_a_dag_says_which_assets_it_waits_for(site):
    assert site.json("dags", "show", "consume")["assets"] == "(orders and refunds) or by hand"
    why = site.json("why", "consume")
    [reason] = [reason for reason in why["reasons"] if reason["rule"] == "assets"]
    assert reason["text"] == "it waits for events of (orders and refunds) or by hand"
    site.run("assets", "event", "refunds")
    assert "(orders) or" not in (text := site.run("why", "consume").stdout)
    assert "it waits for events of orders or by hand" in text
    assert site.json("assets", "show", "refunds")["waiting_dags"] == ["consume"]
