"""Database URLs that name several servers of one database, such as a primary and its standbys.

The driver gives all of them together the time that one may take, so that a machine that is gone without a word would
keep it from ever asking the next. So each is asked by itself, and the one that answered last is asked first.
"""

from urllib.parse import parse_qsl, urlencode, urlsplit

_WRITABLE = ("target_session_attrs", "read-write")
_answered_last: dict[str, str] = {}


def servers_of(dsn: str) -> list[str]:
    """Return a URL for each server that a URL names, in the order in which they are to be asked.

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
    servers = [f"{parts.scheme}://{netloc}{parts.path}?{urlencode(asked | own)}" for netloc, own in places]
    return sorted(servers, key=lambda server: server != _answered_last.get(dsn))


def answered(dsn: str, server: str) -> None:
    """Take note that one of the servers of a URL can be used."""
    _answered_last[dsn] = server
