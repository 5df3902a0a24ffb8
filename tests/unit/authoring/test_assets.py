"""Assets as DAG files make them: their names, their expressions, and refused arguments."""

import textwrap
from types import ModuleType

import msgspec
import pytest

from asynsched import DAG, Asset, AssetAlias, AssetAll, AssetAny, AssetOrTimeSchedule, CronTriggerTimetable, Metadata
from asynsched import BashOperator as Bash
from asynsched.authoring import providers
from asynsched.authoring.active import forget_registered
from asynsched.authoring.asset_keys import AssetAliasUniqueKey, AssetUniqueKey
from asynsched.authoring.dag import collect_dags
from asynsched.authoring.running.try_context import OutletEvent
from asynsched.errors import DagError, SerializationError
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.encode import serialize_dag

a, b, c = Asset("a"), Asset("b"), Asset("c")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("orders", "orders"),
        ("bucket/key/", "bucket/key/"),
        ("S3://Bucket/key//", "s3://Bucket/key"),
        ("s3://bucket", "s3://bucket/"),
        ("https://host/p?b=2&a=1#part", "https://host/p?a=1&b=2"),
        ("file:///tmp/x/", "file:///tmp/x"),
        ("x-own://User@Host/", "x-own://User@Host/"),
    ],
)
def test_a_uri_has_one_form(given, kept):
    assert Asset("n", given).uri == kept
    assert Asset.ref(uri=given) == Asset.ref(uri=kept)


def test_a_uri_is_normalized_by_the_provider_of_its_scheme(monkeypatch):
    described = {"asset-uris": [{"schemes": ["up", "bad"], "handler": f"{__name__}.upper"}, {"schemes": ["none"]}]}
    monkeypatch.setattr(providers, "_found", [providers.Provider("own", "1", described)])
    uris = ("file:///a", "up://host/a", "bad://host/", "none://a/b", "name")
    assert [Asset("n", uri).normalized_uri for uri in uris] == ["file:///a", "up://host/A", None, None, None]


def upper(parts):
    if parts.scheme == "bad":
        raise ValueError("a bad one")
    return parts._replace(path=parts.path.upper())


def test_keys_of_assets_and_aliases_are_made_of_them_and_make_them():
    asset, alias = Asset("n", "u"), AssetAlias("a")
    assert (AssetUniqueKey.from_asset(asset), AssetUniqueKey("n", "u").to_asset()) == (("n", "u"), asset)
    assert AssetAliasUniqueKey.from_asset_alias(alias).to_asset_alias() == alias


def test_an_asset_is_known_by_its_name_and_uri():
    assert (Asset("n").uri, Asset(uri="s3://b/k").name) == ("n", "s3://b/k")
    assert Asset("n", "u", group="g", extra={"k": 1}) == Asset("n", "u")
    assert Asset("n", "u") != Asset("n", "v")
    assert len({Asset("n"), AssetAlias("n"), Asset.ref(name="n"), Asset("n")}) == 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Asset(""), "name of an asset"),
        (lambda: Asset("  "), "not blank"),
        (lambda: Asset("a\0b"), "NUL"),
        (lambda: Asset("self"), "'self'"),
        (lambda: Asset("x" * 1501), "1501 characters"),
        (lambda: Asset("n", "airflow://x"), "reserved"),
        (lambda: Asset("n", "http://[x"), "cannot be read"),
        (lambda: Asset("n", extra={"k": object()}), "is not JSON"),
        (lambda: Asset("n", extra=["k"]), "must be a dict"),
        (lambda: Asset("n", watchers=[1]), "watchers is a list of AssetWatcher, not of 1"),
        (lambda: AssetAlias(""), "alias"),
        (lambda: Metadata(a, {"k": {1}}), "is not JSON"),
        (lambda: Bash(task_id="t", bash_command="true", outlets=["a"]), "outlets must be an Asset"),
        (lambda: Bash(task_id="t", bash_command="true", inlets=5), "inlets must be an Asset"),
        (lambda: DAG("d", schedule=[a, "b"]), "only assets, not 'b'"),
        (lambda: AssetOrTimeSchedule(timetable="@daily", assets=[a]), "needs a time-based timetable"),
        (
            lambda: AssetOrTimeSchedule(timetable=CronTriggerTimetable("@daily", timezone="UTC"), assets=[]),
            "an empty list",
        ),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(make, says):
    with pytest.raises(DagError, match=says):
        make()


@pytest.mark.parametrize(
    "make", [Asset, lambda: Asset.ref(), lambda: Asset.ref(name="n", uri="u"), lambda: AssetAll(1)]
)
def test_wrong_arguments_are_a_type_error(make):
    with pytest.raises(TypeError):
        make()


def test_only_an_alias_takes_other_assets():
    for outlet, n_events in ((AssetAlias("x"), 1), (a, 0)):
        event = OutletEvent(outlet)
        event.add(b)
        assert len([*event.fields()]) == n_events


def test_a_password_in_a_uri_is_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="password") as caught:
        assert Asset("n", "postgres://me:secret@host/table").uri == "postgres://host/table"
    assert "secret" not in str(caught[0].message)


def test_operators_combine_without_needless_nesting():
    assert len((a & b & c).objects) == len((a | b | c).objects) == 3
    assert isinstance(a & b | c, AssetAny)
    assert isinstance(a & (b | c), AssetAll)


def test_a_dag_keeps_its_condition_and_its_tasks_assets_and_their_order():
    with DAG("d", schedule=(a & AssetAlias("x")) | Asset.ref(name="r")) as dag:
        Bash(task_id="t", bash_command="true", inlets=[a], outlets=[b, b, Asset("c", extra={"k": 1}), AssetAlias("x")])
    read = decode_dag(msgspec.json.encode(serialize_dag(dag)))
    assert [leaf.label for leaf in read.asset_condition.leaves()] == ["a", "x", "r"]
    assert read.timetable == {"kind": "null"}
    assert read.schedule_summary == "Asset"
    [task] = read.tasks
    assert [outlet.label for outlet in task.outlets] == ["b", "c", "x"]
    assert task.outlets[1].asset.extra == {"k": 1}
    assert [inlet.label for inlet in task.inlets] == ["a"]


def test_a_schedule_of_assets_or_time_keeps_both():
    timetable = CronTriggerTimetable("0 6 * * *", timezone="UTC")
    dag = DAG("d", schedule=AssetOrTimeSchedule(timetable=timetable, assets=[a, b]))
    read = serialize_dag(dag)
    assert read.timetable == timetable.serialize()
    assert [leaf.label for leaf in read.asset_condition.leaves()] == ["a", "b"]
    assert read.schedule_summary == "Asset or 0 6 * * *"


def test_an_empty_task_that_updates_assets_is_run():
    from asynsched import EmptyOperator

    with DAG("d") as dag:
        EmptyOperator(task_id="plain")
        EmptyOperator(task_id="updates", outlets=a)
    assert [task.is_empty for task in serialize_dag(dag).tasks] == [True, False]


def test_an_expression_that_is_too_deep_is_refused():
    deep = a
    for _ in range(30):
        deep = AssetAll(AssetAny(deep))
    with pytest.raises(SerializationError, match="deep"):
        serialize_dag(DAG("d", schedule=deep))


def load(text):
    """Run a DAG file's text, and return its names and the DAGs that it made."""
    forget_registered()
    module = ModuleType("dag_file")
    exec(
        textwrap.dedent("from asynsched import *\nfrom asynsched import asset\n") + textwrap.dedent(text), vars(module)
    )
    return module, {dag.dag_id: serialize_dag(dag) for dag in collect_dags(module)}


def test_a_decorated_function_is_an_asset_and_a_dag_that_updates_it():
    module, dags = load("""
        @asset(schedule="@daily", uri="s3://shop/raw", group="shop", extra={"k": 1}, tags=["t"], dag_id="make_raw")
        def raw(self, context, other, limit=5): ...

        @asset(schedule=raw)
        def clean(raw): ...

        @asset.multi(schedule=None, outlets=[Asset("left"), AssetAlias("right")])
        def split(): ...

        with DAG("follows", schedule=clean & split):
            EmptyOperator(task_id="t")
    """)
    assert (module.raw.name, module.raw.uri, module.raw.group) == ("raw", "s3://shop/raw", "shop")
    assert isinstance(module.raw, Asset)
    [task] = dags["make_raw"].tasks
    assert (task.task_id, dags["make_raw"].tags, dags["make_raw"].schedule_summary) == ("raw", ("t",), "0 0 * * *")
    assert [outlet.asset.uri for outlet in task.outlets] == ["s3://shop/raw"]
    assert [inlet.asset_ref.name for inlet in task.inlets] == ["other"]
    assert dags["clean"].asset_condition.asset.name == "raw"
    assert [outlet.label for outlet in dags["split"].tasks[0].outlets] == ["left", "right"]
    assert [leaf.label for leaf in dags["follows"].asset_condition.leaves()] == ["clean", "left", "right"]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("@asset(schedule=None)\ndef f(*names): ...", TypeError, r"has \*names"),
        ("@asset(schedule=None)\ndef f(**names): ...", TypeError, r"has \*\*names"),
        ("@asset(schedule=None)\ndef f(a, /): ...", TypeError, "positional-only"),
        ("@asset()\ndef f(): ...", TypeError, "schedule"),
        ("@asset(schedule=None, max_runs=1)\ndef f(): ...", TypeError, "unknown arguments: max_runs"),
        ("def g():\n  @asset(schedule=None)\n  def f(): ...\ng()", DagError, "not at the top level"),
        ("@asset.multi(schedule=None, outlets=[])\ndef f(): ...", DagError, "outlets is empty"),
        ("@asset.multi(schedule=None, outlets=[Asset('a')])\ndef f(self): ...", DagError, "updates several assets"),
        ("@asset(schedule=None, name='two words')\ndef f(): ...", DagError, "dag_id 'two words'"),
    ],
)
def test_a_function_that_cannot_be_decorated_says_why(text, error, says):
    with pytest.raises(error, match=says):
        load(text)
