"""From files to stored DAGs: the watcher says what has changed, the dispatcher has it parsed and stores what was found.

watcher.py         file events and scans -> FileChanged
  discovery.py     what is in the folder; ignore_rules.py and file_system.py beside it
  file_events.py   what the kernel tells of: inotify_events.py on Linux, watchfiles_events.py elsewhere
dispatcher.py      FileChanged -> parses -> stored reports -> DagChanged
  examination.py   what a file is now; freshness.py decides what that means for it
  known_files.py   what was last parsed; parse_queue.py what waits to be parsed
parse_process.py   one parse: a confined process of its own
"""
