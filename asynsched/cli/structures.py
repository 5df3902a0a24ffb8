"""What a DAG consists of, by its name."""

from sqlalchemy import Connection

from asynsched.errors import NotFound
from asynsched.serialization.decode import decode_dag
from asynsched.serialization.schema import SerializedDag
from asynsched.store.dag_versions import get_version
from asynsched.store.dags import find_dag


def find_structure(conn: Connection, dag_id: str) -> SerializedDag:
    """Return the newest version of a DAG. Raises NotFound, with near names, when there is none."""
    found = find_dag(conn, dag_id)
    if found.version_id is None:
        raise NotFound("DAG", dag_id)
    return decode_dag(get_version(conn, found.version_id).serialized)
