"""`asynsched users …` and `asynsched tokens …`: who may use the page and the REST APIs.

Passwords are asked for on a terminal, or read from standard input; a new token is printed once.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import click

from asynsched.cli.command import Amount, command, confirm, fail, yes_option
from asynsched.cli.output import Done, Listing, as_row, note
from asynsched.cli.session import Session, actor
from asynsched.errors import NotFound
from asynsched.home import served_web
from asynsched.queries import users as queries
from asynsched.queries.paging import ANY_TEXT

name_argument = click.argument("name")
roles_argument = click.argument("roles", nargs=-1, required=True, metavar="ROLE…")
password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input, up to the end of the line."
)
user_option = click.option("--user", metavar="NAME", help="Only those of this user.")
ROLE_HELP = "viewer, operator, admin, or a name that DAGs have in their access_control; may be given several times."


@command("create")
@name_argument
@click.option("--role", "roles", multiple=True, required=True, help=ROLE_HELP)
@password_option
@click.option("--no-password", is_flag=True, help="The user signs in at a proxy, or uses tokens only.")
def users_create(session: Session, name: str, roles: tuple[str, ...], password_stdin: bool, no_password: bool) -> Done:
    """Add a user. The password is asked for, and never an argument, which other users of the machine could read."""
    session.make()
    with suppress(NotFound):
        session.read(queries.get_user, name)
        fail(f"There is a user {name!r} already.")
    password = None if no_password else _new_password(password_stdin)
    made = session.act(queries.create_user, name, roles, password=password, now=session.now())
    _warn_about_roles(session, roles)
    return Done(f"User {name!r} is added with the roles {', '.join(made.roles)}.", as_row(made))


@command("list", tables=True)
def users_list(session: Session) -> Listing:
    """List the users and their roles."""
    rows = session.pages(queries.list_users, ANY_TEXT)
    return Listing(queries.UserInfo.__struct_fields__, rows, nothing="There are no users: `asynsched users create`.")


@command("set-role")
@name_argument
@roles_argument
def users_set_role(session: Session, name: str, roles: tuple[str, ...]) -> Done:
    """Give a user these roles instead of the former ones; they count from the next request on.

    ROLE is viewer, operator, admin, or a name that DAGs have in their access_control.
    """
    changed = session.act(queries.set_roles, name, roles)
    _warn_about_roles(session, roles)
    return Done(f"User {name!r} has the roles {', '.join(changed.roles)}.", as_row(changed))


def _warn_about_roles(session: Session, roles: Sequence[str]) -> None:
    if warning := session.read(queries.about_roles, roles):
        note(f"Warning: {warning}")


@command("set-password")
@name_argument
@password_option
def users_set_password(session: Session, name: str, password_stdin: bool) -> Done:
    """Give a user another password, and end the sessions; personal tokens stay."""
    session.read(queries.get_user, name)
    password = _new_password(password_stdin)
    session.act(queries.set_password, name, password=password)
    return Done(f"User {name!r} has another password, and no session.", {"name": name})


@command("disable")
@name_argument
def users_disable(session: Session, name: str) -> Done:
    """Take all roles from a user, and end the sessions and tokens. `users set-role` gives roles again."""
    changed = session.act(queries.disable_user, name)
    return Done(f"User {name!r} is disabled.", as_row(changed))


@command("delete")
@name_argument
@yes_option
def users_delete(session: Session, name: str, yes: bool) -> Done:
    """Delete a user, with all sessions and tokens."""
    session.read(queries.get_user, name)
    if not yes:
        confirm(f"Delete the user {name!r}, with all sessions and tokens?")
    session.act(queries.delete_user, name)
    return Done(f"User {name!r} is deleted.", {"name": name})


@command("sessions", tables=True)
@user_option
def users_sessions(session: Session, user: str | None) -> Listing:
    """List the browsers that are signed in."""
    wanted = queries.TokenFilter(now=session.now(), owner=user)
    rows = session.pages(queries.list_sessions, wanted)
    return Listing(("id", "owner", "created_at", "expires_at"), rows, nothing="Nobody is signed in.")


@command("end-session")
@click.argument("session_id", type=int, metavar="ID")
def users_end_session(session: Session, session_id: int) -> Done:
    """Sign a browser out. ID is the number that `users sessions` shows."""
    ended = session.act(queries.end_session, session_id)
    return Done(f"Session {session_id} of {ended.owner!r} has ended.", {"id": session_id, "owner": ended.owner})


@command("link")
def users_link(session: Session) -> Done:
    """Print a link that signs its first user in to the page, with all rights, within a day."""
    secret, owner = queries.new_secret(), actor()
    url = served_web(session.home)
    if url is None:
        fail("No page was served from this home yet: `asynsched up` and `asynsched web` serve it.")
    session.act(queries.create_link, secret, owner, now=session.now())
    link = f"{url}/login?key={secret}"
    return Done(link, {"link": link})


@command("create")
@click.option("--user", metavar="NAME", help="Whose token it is; by default yours, with all rights.")
@click.option("--label", default="", help="Its purpose.")
@click.option(
    "--scope", type=click.Choice(queries.SCOPES), default="operate", show_default=True, help="The most that it allows."
)
@click.option("--dag", "dag_ids", multiple=True, metavar="DAG", help="Only for this DAG; may be given several times.")
@click.option(
    "--days", type=Amount(0, queries.LONGEST_TOKEN.days, min_open=True), default=90, show_default=True,
    help="Its lifetime.",
)  # fmt: skip
def tokens_create(
    session: Session, user: str | None, label: str, scope: str, dag_ids: tuple[str, ...], days: float
) -> Done:
    """Make a token for a program, and print it, once. It never allows more than its user may do."""
    session.make()
    lasts = timedelta(days=days)
    options: dict[str, Any] = {"scope": scope, "dag_ids": dag_ids or None, "now": session.now(), "lasts": lasts}
    if user is None:
        made = session.act(queries.create_token, actor(), label, user_id=None, **options)
    else:
        made = session.act(queries.create_token_of, user, label, **options)
    return Done(made.secret, {"token": made.secret, **as_row(made.info)})


@command("list", tables=True)
@user_option
@click.option("--mine", is_flag=True, help="Only yours: those that `tokens create` makes without --user.")
def tokens_list(session: Session, user: str | None, mine: bool) -> Listing:
    """List the tokens of programs, without their secrets."""
    if mine and user is not None:
        raise click.BadParameter("leave it out, or --user", param_hint="--mine")
    wanted = queries.TokenFilter(now=session.now(), owner=actor() if mine else user)
    rows = session.pages(queries.list_tokens, wanted)
    return Listing(queries.TokenInfo.__struct_fields__, rows, nothing="There are no tokens.", spare=("created_at",))


@command("delete")
@click.argument("token_id", type=int, metavar="ID")
def tokens_delete(session: Session, token_id: int) -> Done:
    """End a token at once. ID is the number that `tokens list` shows."""
    ended = session.act(queries.delete_token, token_id)
    return Done(f"Token {token_id} of {ended.owner!r} has ended.", {"id": token_id, "owner": ended.owner})


def _new_password(from_stdin: bool) -> str:
    """Return the hash of a password that the user gives. Ends the command without one."""
    if from_stdin:
        given = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        given = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        fail("There is no terminal to ask for the password on: give --password-stdin, or --no-password.")
    return queries.hash_password(given)
