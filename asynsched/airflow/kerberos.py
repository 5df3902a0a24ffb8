"""Kerberos: tickets from a keytab, and the parts of a principal."""

from __future__ import annotations

from asynsched.airflow.configuration import conf
from asynsched.airflow.values import get_hostname

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def get_kerberos_principal(principal: str | None) -> str:
    """Return the principal, by default `[kerberos] principal` with this machine's name for `_HOST`."""
    return principal or conf.get_mandatory_value("kerberos", "principal").replace("_HOST", get_hostname())


def renew_from_kt(principal: str | None, keytab: str, exit_on_fail: bool = True) -> int:
    """Get a ticket by `kinit`, as the section `kerberos` says, and return kinit's exit code.

    Args:
        principal: The owner of the ticket; by default `[kerberos] principal`.
        keytab: The file with the key.
        exit_on_fail: Whether to exit with kinit's exit code if it fails.
    """
    import logging
    import subprocess
    import sys

    command = [
        conf.get_mandatory_value("kerberos", "kinit_path"),
        "-f" if conf.getboolean("kerberos", "forwardable") else "-F",
        "-a" if conf.getboolean("kerberos", "include_ip") else "-A",
        # In minutes, as many as the option has seconds: Airflow leaves that much time to renew.
        "-r", f"{conf.getint('kerberos', 'reinit_frequency')}m",
        "-k", "-t", keytab,
        "-c", conf.get_mandatory_value("kerberos", "ccache"),
        get_kerberos_principal(principal),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
    if done.returncode:
        logging.getLogger(__name__).error("kinit failed: %s%s", done.stdout, done.stderr)
        if exit_on_fail:
            sys.exit(done.returncode)
    return done.returncode


def get_components(principal: str | None) -> list[str] | None:
    """Return the parts of a principal: name, instance, realm. None for an empty one."""
    import re

    return re.split(r"[/@]", str(principal)) if principal else None


def replace_hostname_pattern(components: Sequence[str], host: str | None = None) -> str:
    """Return the principal of these parts with a host, by default this one, as the instance."""
    name = host if host and host != "0.0.0.0" else get_hostname()  # noqa: S104 - compared only
    return f"{components[0]}/{name.lower()}@{components[2]}"


def get_fqdn(hostname_or_ip: str | None = None) -> Any:
    """Return the full name of a host, by default of this one; the argument if the host is not known."""
    import socket

    try:
        found = socket.gethostbyaddr(hostname_or_ip)[0] if hostname_or_ip else "localhost"
        return get_hostname() if found == "localhost" else found
    except OSError:
        return hostname_or_ip


def principal_from_username(username: str, realm: str) -> str:
    """Return a user's principal in a realm, unless the name has a realm."""
    return username if "@" in username or not realm else f"{username}@{realm}"
