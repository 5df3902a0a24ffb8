"""Everything that runs user code, in processes of its own: parses of DAG files, templates and tries."""
