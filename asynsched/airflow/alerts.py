"""Mails of tasks that fail or are retried: their arguments `email`, `email_on_failure` and `email_on_retry`.

They are sent where callbacks run, after the task's own callbacks.

Source: Apache Airflow's `email_alert` and its options `[email]` and `[smtp]`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from asynsched.authoring.connection import Connection
    from asynsched.authoring.running.context import Context

_FLAGS = {"on_failure": "email_on_failure", "on_retry": "email_on_retry"}
SUBJECT = "Airflow alert: {{ ti }}"
CONTENT = (
    "Try {{ try_number }} of {{ max_tries + 1 }}<br>Exception:<br>{{ exception_html }}<br>"
    "{% if ti.log_url.startswith('http') %}Log: <a href=\"{{ ti.log_url }}\">{{ ti.log_url }}</a>"
    "{% else %}Log: {{ ti.log_url }}{% endif %}<br>"
)
_BACKEND = "airflow.utils.email.send_email_smtp"


def callbacks_of(owner: Any, event: str) -> list[Callable[[Context], Any]]:
    """Return the callbacks of a task or DAG for an event, with the mail that the task wants."""
    own = list(getattr(owner, f"{event}_callback", None) or ())
    return [*own, send_alert] if may_mail(owner, event) and _mails_by_configuration(owner, event) else own


def may_mail(owner: Any, event: str) -> bool:
    """Return whether a task wants a mail at an event, unless the configuration decides that."""
    return event in _FLAGS and bool(getattr(owner, "email", None)) and getattr(owner, _FLAGS[event]) is not False


def _mails_by_configuration(task: Any, event: str) -> bool:
    from asynsched.airflow.configuration import conf

    given = getattr(task, _FLAGS[event])
    return bool(conf.getboolean("email", f"default_{_FLAGS[event]}")) if given is None else bool(given)


def send_alert(context: Context) -> None:
    """Mail that a task has failed or will be retried, to its `email`.

    The server is that of the connection `[email] email_conn_id`, else that of the section `[smtp]`; `[email]
    email_backend` replaces both.

    Raises:
        AsynschedException: The mail cannot be sent; the message says what to configure.
    """
    from asynsched.airflow.configuration import conf
    from asynsched.authoring.exceptions import AsynschedException

    to = context["task"].email
    subject, html = (_rendered(context, option, text) for option, text in _TEXTS.items())
    conn_id = conf.get("email", "email_conn_id")
    try:
        if conf.get("email", "email_backend") == _BACKEND and (connection := _server(conn_id)) is not None:
            _notify(context, to, subject, html, conn_id, connection)
        else:
            from asynsched.airflow.email import send_email

            send_email(to, subject, html)
    except OSError as exc:  # also of smtplib
        server = f"{conf.get('smtp', 'smtp_host')}:{conf.get('smtp', 'smtp_port')}"
        raise AsynschedException(
            f"no mail to {to}: {server}: {exc}; store the connection {conn_id}, or set [smtp] smtp_host; remove `email`"
            " from the task if it should send none"
        ) from None


_TEXTS = {"subject_template": SUBJECT, "html_content_template": CONTENT}
"""The options that name files of templates, and the templates without them."""


def _rendered(context: Context, option: str, default: str) -> str:
    from markupsafe import Markup, escape

    from asynsched.airflow.configuration import conf

    template, path, ti = default, conf.get("email", option, fallback=None), context["ti"]
    if path:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib would be loaded for this
            template = file.read()
    exception = context.get("exception")
    html = escape(str(exception)).replace("\n", Markup("<br>"))
    values = {
        **context, "ti": ti, "exception": exception, "exception_html": html, "try_number": ti.try_number,
        "max_tries": ti.max_tries,
    }  # fmt: skip
    return str(context["dag"].get_template_env(native=False).from_string(template).render(values))


def _server(conn_id: str) -> Connection | None:
    """Return the connection of a mail server; None if there is none, or it names no host."""
    from asynsched.authoring.connection import Connection
    from asynsched.authoring.exceptions import AsynschedNotFoundException

    try:
        connection = Connection.get(conn_id)
    except AsynschedNotFoundException:
        return None
    return connection if connection.host else None


def _notify(context: Context, to: Any, subject: str, html: str, conn_id: str, connection: Connection) -> None:
    from asynsched.airflow.configuration import conf
    from asynsched.authoring.notifiers import TEXT, SmtpNotifier

    sender = connection.extra_dejson.get("from_email") or connection.login
    sender = conf.get("email", "from_email", fallback=None) or sender or conf.get("smtp", "smtp_mail_from")
    notifier = SmtpNotifier(to, sender, text=TEXT, smtp_conn_id=conn_id)
    notifier.render_template_fields(context)
    # Rendered already: a text of an exception in them is no template.
    notifier.subject, notifier.html_content = subject, html
    notifier.notify(context)
