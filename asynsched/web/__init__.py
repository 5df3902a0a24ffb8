"""asynsched over HTTP: Airflow's API v2, our own API, events, and the page; and who may use them.

One ASGI application (`app.py`): a scheduler serves it in its own loop, a host application mounts it, and `asynsched
web` serves it in processes of its own. What it answers comes from `asynsched.queries`.
"""
