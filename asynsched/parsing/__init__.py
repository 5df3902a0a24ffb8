"""From files to stored DAGs: the watcher reports what has changed, the dispatcher parses that and stores the outcomes.

watching/watcher.py     file events and scans -> FileChanged
  discovery.py          a walk through the folder; ignore_rules.py says what it leaves out
  file_events.py        what the kernel reports: inotify_events.py on Linux, watchfiles_events.py elsewhere
dispatcher.py           FileChanged -> parses -> stored outcomes -> DagChanged
  files.py              what was last parsed of each file, why it is looked at, and where it is on its way
  looks.py              what a file is now, and what follows from that
  jobs.py               what waits to be parsed: queued, claimed beside other schedulers, ready
  progress.py           what is reported to callers that wait, to health and to the log
processes/              one parse: a confined process of its own
"""
