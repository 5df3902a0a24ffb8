"""Every question and every action once: plain functions with typed results, below all interfaces of asynsched.

The command line, the Python API, REST and the page ask and act through these functions, and show the same fields. A
question is a function of a connection, like any query; an action also returns what it did (`Act`), for the audit and
for the schedulers. `QueryContext` runs both for the event loop.
"""
