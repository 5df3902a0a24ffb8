"""The page: views of HTML that the server renders, one module for a group of addresses.

Each view has an address of its own and reads without JavaScript. Scripts refine it: they replace parts of the page
with parts of the same address, fetched again. Actions are forms: a POST that redirects to a view.
"""

from asynsched.web.pages import (  # noqa: F401 - each adds its views
    actions,
    answers,
    assets,
    browse,
    change,
    dag,
    dags,
    home,
    logs,
    many,
    notes,
    operation,
    preferences,
    runs,
    secrets,
    static,
    tasks,
    tokens,
    trigger,
    unknown,
    users,
)
from asynsched.web.pages.page import PAGE, routes

__all__ = ["PAGE", "routes"]
