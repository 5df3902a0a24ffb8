"""The Python files of a DAG folder: imported from their text, recorded, and imported again as they were."""
