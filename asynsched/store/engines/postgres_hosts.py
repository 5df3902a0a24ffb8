"""Database URLs that name several servers of one database, such as a primary and its standbys.

The driver gives all of them together the time that one may take, so that a machine that is gone without a word would
keep it from ever asking the next. So each is asked by itself, and the one that answered last is asked first.
"""

from urllib.parse import parse_qsl, urlencode, urlsplit

_WRITABLE = ("target_session_attrs", "read-write")


class ServerOrder:
    """The order in which the servers of one URL are asked, which all who connect to it for the same may share."""

    def __init__(self) -> None:
        self._answered_last = ""

    def of(self, dsn: str) -> list[str]:
        """Return a URL for each server that the URL names, the one that is to be asked first at first."""
        return sorted(servers_of(dsn), key=lambda server: server != self._answered_last)

    def answered(self, server: str) -> None:
        """Take note that one of them can be used."""
        self._answered_last = server


def servers_of(dsn: str) -> list[str]:
    """Return a URL for each server that a URL names, in its order.

    A scheduler writes. So where there are several, only one that takes writes will do, unless the URL says otherwise.
    """
    parts = urlsplit(dsn)
    who, at, named = parts.netloc.partition("@") if "@" in parts.netloc else ("", "", parts.netloc)
    query = dict(parse_qsl(parts.query))
    places: list[tuple[str, dict[str, str]]]
    if "," in named:
        places = [(who + at + host, {}) for host in named.split(",")]
    elif not named and "," in query.get("host", ""):
        hosts, ports = query["host"].split(","), query.get("port", "").split(",")
        ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
        places = [
            (parts.netloc, {"host": host} | ({"port": port} if port else {}))
            for host, port in zip(hosts, ports, strict=True)
        ]
    else:
        return [dsn]
    asked = dict([_WRITABLE]) | query
    return [f"{parts.scheme}://{netloc}{parts.path}?{urlencode(asked | own)}" for netloc, own in places]
