"""Which process removes the logs of a deleted run from the store of logs."""

from types import SimpleNamespace

from asynsched.cli.runs import remove_archived_logs
from asynsched.executors.log_archive import archive_of
from asynsched.executors.log_removal import remove_logs
from asynsched.home import hold_home, prepare_home
from asynsched.keys import DagRunKey
from asynsched.settings import LogSettings, Settings


def test_a_command_leaves_the_logs_in_the_store_to_the_scheduler_of_its_home(tmp_path):
    store, home, file = tmp_path / "store", tmp_path / "home", tmp_path / "log"
    store.mkdir()
    file.write_text("one\n")
    prepare_home(home)
    settings = Settings(home=str(home), log=LogSettings(store=store.as_uri()))
    archive = archive_of(settings.log)
    archive.put("dag_id=d/run_id=r/on_success.log", file, tmp_path)
    remove_logs(home, [DagRunKey("d", "r")], are_archived=True)
    session = SimpleNamespace(home=home, settings=settings)
    with hold_home(home):
        remove_archived_logs(session)
    assert archive.run_folders("dag_id=d") == ["run_id=r"]
    remove_archived_logs(session)
    assert archive.run_folders("dag_id=d") == []
