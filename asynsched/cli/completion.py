"""Shell completion of the names of stored DAGs, runs and tasks. It creates no files, and fails silently."""

import os
from pathlib import Path
from threading import Timer
from typing import Any, Literal

from click import Context
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string
from sqlalchemy import Connection

from asynsched.cli.configuration import load_configuration
from asynsched.keys import LATEST
from asynsched.queries.runs import run_named
from asynsched.store.dags.dags import all_dag_ids
from asynsched.store.engines.opening import connect_direct, file_exists
from asynsched.store.engines.urls import hurried, parse_url
from asynsched.store.runs.dag_runs import run_ids_beginning_with
from asynsched.store.runs.task_instances import list_task_instances

Kind = Literal["dag", "run", "task"]
MOST_NAMES = 100
LONGEST_SECONDS = 2.0
"""A completion that takes longer returns nothing: the user has pressed a key and waits."""


def names_of(kind: Kind, context: Context, incomplete: str) -> list[str]:
    """Return the completions of an argument; none if the database cannot be read."""
    give_up = Timer(LONGEST_SECONDS, os._exit, [0])
    give_up.daemon = True
    give_up.start()
    try:
        flags = {name: context.params.get(name) for name in ("home", "database")}
        settings = load_configuration(flags, os.environ, Path.cwd()).settings
        url = parse_url(hurried(settings.database_url, LONGEST_SECONDS))
        if not file_exists(url):
            return []
        with connect_direct(url) as database:
            return database.read(_names, kind, context.params, incomplete)[:MOST_NAMES]
    except Exception:  # noqa: BLE001 - a message would land in the line that the user is typing
        return []
    finally:
        give_up.cancel()


def _names(conn: Connection, kind: Kind, given: dict[str, Any], incomplete: str) -> list[str]:
    if kind == "dag":
        return [name for name in sorted(all_dag_ids(conn)) if name.startswith(incomplete)]
    if kind == "run":
        latest = [LATEST] if LATEST.startswith(incomplete) else []
        runs = run_ids_beginning_with(conn, given["dag_id"], incomplete, MOST_NAMES)
        return [*latest, *runs] if runs or incomplete else []
    run = run_named(conn, given["dag_id"], given["run_id"])
    tasks = dict.fromkeys(instance.task_id for instance in list_task_instances(conn, run.id))
    return [name for name in tasks if name.startswith(incomplete)]


@add_completion_class
class Bash(BashComplete):
    """Completion for bash, also of words with colons, such as run ids: bash splits these into several words."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' reply
    for reply in $(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
%(complete_var)s=bash_complete "$1"); do
        case "$reply" in
            plain,*) COMPREPLY+=("${reply#plain,}") ;;
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the cursor, and the one at the cursor, from the line itself."""
        before = os.fsdecode(os.environb[b"COMP_LINE"][: int(os.environ["COMP_POINT"])])
        words = split_arg_string(before)
        return (words[1:], "") if before[-1:].isspace() else (words[1:-1], words[-1])

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the completions as bash needs them, without the part before its last word break."""
        _, incomplete = self.get_completion_args()
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        start = max((incomplete.rfind(sign) + 1 for sign in breaks), default=0)
        return f"{item.type},{item.value[start:]}"
