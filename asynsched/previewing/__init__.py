"""The preview of a change: reads a new state of the DAG folder and the present one, and simulates both."""
