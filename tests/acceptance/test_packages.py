"""The parse of a DAG file and the tries of its tasks see the same installed packages."""

import os
import sys
import sysconfig
from pathlib import Path

import asynsched
from tests.support.up import Site

USES_IT = """
    from only_of_this_user import WORD
    from asynsched import DAG, task

    with DAG("uses_it", schedule="@once", description=WORD):

        @task
        def tell():
            import only_of_this_user

            return only_of_this_user.WORD

        tell()
"""


class SiteOutsideOfEnvironments(Site):
    """Runs the interpreter that the virtual environment was made of, which looks into the user's own site."""

    def command(self, *args: str) -> list[str]:
        return [sys._base_executable, "-m", "asynsched", *args]


def test_parses_and_tries_see_packages_of_the_user_site_and_pythonpath(tmp_path):
    users_home = tmp_path / "users_home"
    own_site = Path(sysconfig.get_path("purelib", "posix_user", vars={"userbase": str(users_home / ".local")}))
    own_site.mkdir(parents=True)
    (own_site / "only_of_this_user.py").write_text("WORD = 'found'\n")
    (users_home / "notes").write_text("nobody else's")
    folders = [str(Path(asynsched.__file__).parents[1]), *(entry for entry in sys.path if entry)]
    site = SiteOutsideOfEnvironments(
        tmp_path / "site", env={"HOME": str(users_home), "PYTHONPATH": os.pathsep.join(folders)}
    )
    site.write("uses_it.py", USES_IT)
    site.write("is_nosy.py", f"from asynsched import DAG\nopen({str(users_home / 'notes')!r})")
    site.up_until_idle()
    assert {error["file"]: "parse.readable" in error["message"] for error in site.json("dags", "errors")} == {
        "is_nosy.py": True
    }
    [run] = site.runs("uses_it")
    [told] = site.json("tasks", "xcom", "uses_it", run["run_id"], "tell")
    assert told["value"] == "found"
