"""Deadlines of DAGs: their arguments, and the calls of their callbacks."""

import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from asynsched import (
    DAG,
    AsyncCallback,
    AsynschedException,
    BaseDeadlineReference,
    BaseNotifier,
    BashOperator,
    Context,
    DagError,
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
    VariableInterval,
    deadline_reference,
)
from asynsched.serialization.encode import serialize_dag

HEARD = []
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _nothing_heard():
    HEARD.clear()


def with_context(text, context):
    HEARD.append((text, context["run_id"]))


def without_context(text):
    HEARD.append((text, None))


def with_everything(**kwargs):
    HEARD.append((kwargs["text"], kwargs["context"]["run_id"]))


async def later(text, context):
    HEARD.append((text, context["run_id"]))


class Notifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        HEARD.append((self.text, context["run_id"]))

    async def async_notify(self, context):
        HEARD.append((self.text + " later", context["run_id"]))


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (SyncCallback(with_context, {"text": "late"}), ("late", "r")),
        (SyncCallback(without_context, {"text": "late"}), ("late", None)),
        (SyncCallback(with_everything, {"text": "late"}), ("late", "r")),
        (SyncCallback(lambda context: HEARD.append(context["run_id"])), "r"),
        (AsyncCallback(later, {"text": "late"}), ("late", "r")),
        (SyncCallback(Notifier, {"text": "{{ run_id }} is late"}), ("r is late", "r")),
        (AsyncCallback(Notifier, {"text": "{{ run_id }} is late"}), ("r is late later", "r")),
    ],
)
def test_a_callback_is_given_its_arguments_and_the_context_if_it_wants_it(callback, expected):
    callback(Context(run_id="r"))
    assert [expected] == HEARD


def test_a_dotted_name_is_imported_when_it_is_called(monkeypatch, tmp_path):
    (tmp_path / "alarms.py").write_text("async def ring(context, n): context['heard'].append(n)\n")
    callback = AsyncCallback("alarms.ring", {"n": 3})
    monkeypatch.syspath_prepend(tmp_path)
    callback(Context(heard=HEARD))
    sys.modules.pop("alarms")
    assert HEARD == [3]
    with pytest.raises(ImportError):
        SyncCallback("nowhere.at_all")(Context())


class Own(BaseDeadlineReference):
    def __init__(self, required=(), answer=None):
        self.required_kwargs, self.answer = required, answer

    def _evaluate_with(self, *, session, **given):
        return session.scalar(given) if self.answer == "asks" else self.answer


class NeedsArguments(BaseDeadlineReference):
    def __init__(self, needed):
        self.needed = needed


RUN = SimpleNamespace(dag_id="d", run_id="r")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SyncCallback("no name"), "dotted name"),
        (lambda: SyncCallback(3), "a function"),
        (lambda: SyncCallback(with_context, {"context": {}}), "context is given"),
        (lambda: SyncCallback(with_context, ["late"]), "kwargs must be a dict"),
        (lambda: AsyncCallback(with_context), "not an async function"),
        (lambda: DeadlineAlert("queued", HOUR, SyncCallback(with_context)), "DeadlineReference"),
        (lambda: DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, 60, SyncCallback(with_context)), "timedelta"),
        (lambda: DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, HOUR, with_context), "SyncCallback"),
        (lambda: DeadlineReference.FIXED_DATETIME("2026-01-01"), "needs a datetime"),
        (lambda: DeadlineReference.AVERAGE_RUNTIME(3, 0), "at least 1"),
        (lambda: DAG("d", deadline=HOUR), "DAG 'd': deadline must be"),
        (lambda: deadline_reference(Notifier), "no subclass of BaseDeadlineReference"),
        (lambda: deadline_reference("some day")(Own), "a member of DeadlineReference.TYPES"),
        (lambda: deadline_reference(NeedsArguments), "give each of its arguments a default"),
        (lambda: VariableInterval(3), "needs the key of a variable"),
        (lambda: Own({"session"}, None).evaluate(RUN), "session is none of dag_id, run_id, dag_run"),
        (lambda: Own((), "noon").evaluate(RUN), "must return an aware datetime or None, not 'noon'"),
        (lambda: Own((), datetime(2026, 1, 1)).evaluate(RUN), "must return an aware datetime"),
    ],
)
def test_a_mistake_is_told_where_the_file_is_parsed(make, words):
    with pytest.raises(DagError, match=words):
        make()


def test_a_reference_of_an_author_is_a_member_for_all_files_and_gets_no_database():
    try:
        queued = deadline_reference(DeadlineReference.TYPES.DAGRUN_QUEUED)
        for decorate in (deadline_reference, deadline_reference(), queued):
            assert decorate(Own) is Own
            assert DeadlineReference.Own == Own()
    finally:
        del DeadlineReference.Own
    with pytest.raises(AsynschedException, match=r"session\.scalar: user code has no access to the database"):
        Own((), "asks").evaluate(RUN)


def test_a_fixed_moment_without_a_zone_is_in_that_of_the_dag():
    callback = SyncCallback(with_context)
    alert = DeadlineAlert(DeadlineReference.FIXED_DATETIME(datetime(2026, 7, 1, 12)), HOUR, callback, "noon")
    with DAG("d", start_date="2026-01-01T00:00:00+09:00", deadline=alert) as dag:
        BashOperator(task_id="t", bash_command="true")
    [deadline] = serialize_dag(dag).deadlines
    assert (deadline.name, deadline.at) == ("noon", datetime(2026, 7, 1, 3, tzinfo=UTC))
