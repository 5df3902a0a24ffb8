"""Which DAG files are plain: their tasks seem to look at nothing but their arguments.

Processes of plain files are forked from one that has loaded neither Jinja nor pendulum, which makes the hop between two
tasks a fifth shorter (`sandbox.zygote`). A file's text decides, because nothing of it is loaded yet. That is a guess,
and a wrong one costs time only: a task itself imports the modules it needs, or its process is larger than necessary.
So a file that changes the import system, or the rights of its tasks, is not plain.
"""

import re
import sys
from collections.abc import Collection

MAX_CHARACTERS = 256 * 1024
"""Limit for a file with its local modules: longer ones are not searched, and so are not plain."""
_SIGNS = re.compile(
    r"""
      \{\{ | \{%                                            # a template
    | \*\*                                                  # keyword arguments: the whole context
    | (?<!Python)(?<!Empty)(?<!ShortCircuit)Operator | (?<!\w)ExternalPythonOperator | Sensor
    | task\.(?: bash | sensor | \w*virtualenv | \w*external_python )
    | \.(?: start_date | end_date | run_after | get_\w*(?: date | prev | dagrun )\w* )(?!\w)
    | (?<!\w)(?:
        \w*context | \w*callback\w* | \w*template\w* | execute
      | chroot | meta_path | path_hooks | set\w*[ug]id | sys\.path
      | dag_run | data_interval_\w+ | logical_date | macros | prev_\w+
      | jinja2 | pendulum | subprocess | tempfile | zoneinfo
      )(?!\w)
    """,
    re.VERBOSE,
)
"""Where one of these is, tasks may render templates, look at instants of their run, or start programs."""
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
_KNOWN = frozenset({"asynsched", *sys.stdlib_module_names})


def looks_plain(texts: Collection[str], local_modules: Collection[str]) -> bool:
    """Return whether a DAG file and its local modules, given by their texts, seem to have plain tasks only.

    Args:
        local_modules: Names of the modules that are among the texts. The text of others, such as operators in an
            installed package, is unknown, so a file that imports them is not plain.
    """
    if sum(map(len, texts)) > MAX_CHARACTERS:
        return False
    local = {name.partition(".")[0] for name in local_modules}
    if local & sys.stdlib_module_names:
        return False
    known = _KNOWN | local
    return not any(_SIGNS.search(text) or not known.issuperset(_IMPORT.findall(text)) for text in texts)
