"""`asynsched dags pause|unpause|reparse`."""

from asynsched.bell import Hint
from asynsched.cli.command import command, dag_argument
from asynsched.cli.rendering import Done
from asynsched.cli.session import Session
from asynsched.store.dags import set_paused


@command("pause")
@dag_argument
def pause_dag(session: Session, dag_id: str) -> Done:
    """Pause a DAG: no run is created, no queued run is started. What runs goes on."""
    return _set_paused(session, dag_id, is_paused=True)


@command("unpause")
@dag_argument
def unpause_dag(session: Session, dag_id: str) -> Done:
    """Unpause a DAG."""
    return _set_paused(session, dag_id, is_paused=False)


def _set_paused(session: Session, dag_id: str, *, is_paused: bool) -> Done:
    session.change(
        "dag.pause" if is_paused else "dag.unpause",
        lambda conn: set_paused(conn, dag_id, is_paused, session.now()),
        hints=lambda _: [Hint("dag", dag_id=dag_id)],
    )
    state = "paused" if is_paused else "unpaused"
    return Done(f"DAG {dag_id!r} is {state}.", {"dag_id": dag_id, "paused": is_paused})
