"""Detection of the DAG folder's files, and of changes to them."""
