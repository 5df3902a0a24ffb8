"""The process of a try: loading the DAG file, running the task, reporting the outcome."""
