"""One run of a DAG in the foreground, in this process, by the scheduler's own rules: `DAG.test()` and `dags test`."""
