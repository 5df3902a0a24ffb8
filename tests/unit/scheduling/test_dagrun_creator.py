"""The dagrun creator announces the DAGs that it has examined."""

from datetime import timedelta

from asynsched import DAG, BashOperator
from asynsched.channels import Channels, DagChanged, RunCreated
from asynsched.clock import VirtualClock
from asynsched.scheduling.creation.dagrun_creator import DagRunCreator
from asynsched.settings import Settings
from asynsched.store.engines.opening import open_inline
from tests.support.runs import NOON
from tests.support.stored import store_dag

HOUR = timedelta(hours=1)


async def test_a_due_dag_is_announced_as_changed_only_after_a_message():
    """A needless announcement makes the evaluator read the DAG again."""
    database, channels, clock = open_inline(), Channels(), VirtualClock(NOON)
    with DAG("d", schedule="@hourly", start_date=NOON, catchup=True) as dag:
        BashOperator(task_id="t", bash_command="true")
    await database.write(store_dag, dag)
    creator = DagRunCreator(settings=Settings(), channels=channels, database=database, clock=clock)

    async def told(hours: int) -> list[type]:
        clock.leap(timedelta(hours=hours) / timedelta(seconds=1))
        await creator.tick(clock.now())
        return [type(message) for message in (*channels.limits.take(), *channels.runs.take())]

    assert await told(0) == [RunCreated]
    assert await told(1) == [RunCreated]
    channels.dag_changes.offer(DagChanged("d"))
    assert await told(1) == [DagChanged, RunCreated]
    assert await told(1) == [RunCreated]
    await database.close()


async def test_a_clock_that_is_set_back_holds_up_no_sweep():
    database, channels, clock = open_inline(), Channels(), VirtualClock(NOON)
    creator = DagRunCreator(settings=Settings(), channels=channels, database=database, clock=clock)
    await creator.tick(NOON)
    with DAG("d", schedule="@hourly", start_date=NOON - 3 * HOUR, catchup=True) as dag:
        BashOperator(task_id="t", bash_command="true")
    set_back = NOON - HOUR
    await database.write(store_dag, dag, set_back)
    await creator.tick(set_back)
    assert [type(message) for message in channels.runs.take()] == [RunCreated]
    await database.close()
