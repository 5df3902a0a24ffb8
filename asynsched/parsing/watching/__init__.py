"""Which files of the DAG folder there are, and which of them have changed."""
