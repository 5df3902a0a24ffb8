"""From files to stored DAGs: the watcher reports changed files, the dispatcher parses them and stores the outcomes.

watching/watcher.py     file events and scans -> FileChanged
  discovery.py          a walk through the folder, without the files that ignore files exclude
  file_events.py        the kernel's reports: by inotify on Linux, by watchfiles elsewhere
dispatcher.py           FileChanged -> parses -> stored outcomes -> DagChanged
  files.py              each file's last parse, the requests to look at it, and its stage
  looks.py              the present state of a file, and the step that follows from it
  names.py              the variables and connections that files read while they are parsed
  progress.py           progress for waiting callers, for health and for the log
processes/              one parse: a confined process of its own
"""
