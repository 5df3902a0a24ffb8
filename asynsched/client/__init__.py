"""The Python API of questions and actions: one class whose methods answer here, or in a web application elsewhere."""
