"""Everything that runs user code, in processes of its own: parses of DAG files, templates and tries.

parse.py          `python -P -m sandbox.parse FILE`: one parse; its parts in parsing/
parse_server.py   the same for many files, each by a fork of a process that is warm
confine.py        the restrictions of a parse; its parts in confinement/. The front door: the scheduler's side
                  imports nothing else of this package, and speaks to its processes by `asynsched.protocol`
keeper.py         supervisor of every local try; its parts in supervision/
  zygote.py       forks the processes that load DAG files
  template.py     a DAG file's version, loaded, to be forked
  run.py          one try
  trigger_host.py the triggers of one version, on one event loop
sources/          a DAG file's own modules: recorded by a parse, imported again by a try
loading.py        one version of a DAG file, loaded in a process that runs tries
processes.py      what all of them share: title, output, adopting, reaping, killing
"""
