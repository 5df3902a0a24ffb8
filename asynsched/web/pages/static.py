"""`/static/…`: the page's own files, named by their content so that browsers keep them."""

import gzip
import hashlib
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from anyio.to_thread import run_sync
from starlette.responses import Response

from asynsched.web.access import Permission
from asynsched.web.endpoint import Call
from asynsched.web.errors import detail
from asynsched.web.pages.page import PAGE, templates

FOLDER = Path(__file__).parents[1] / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOREVER = "public, max-age=31536000, immutable"


class StaticFile(NamedTuple):
    """A file, compressed, and the name that changes with its content."""

    content: bytes
    compressed: bytes
    media_type: str


@cache
def files() -> dict[str, StaticFile]:
    """Return the files by the names under which they are served. Reads them once."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in TYPES:
            content = path.read_bytes()
            found[served_name(path)] = StaticFile(content, gzip.compress(content, 9), TYPES[path.suffix])
    return found


@cache
def served_name(path: Path) -> str:
    """Return the name under which a file is served: with a digest of its content."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:10]
    return f"{path.stem}.{digest}{path.suffix}"


@PAGE.endpoint("GET", "/static/{name}", permission=Permission.NOTHING)
async def static(call: Call, name: str) -> Response:
    """Send a file."""
    found = (await run_sync(files)).get(name)
    if found is None:
        return detail(HTTPStatus.NOT_FOUND, "There is no such file.")  # not the page of an error: nobody need sign in
    headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
    if "gzip" in call.request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.compressed, 200, headers, media_type=found.media_type)
    return Response(found.content, 200, headers, media_type=found.media_type)


templates().globals["static"] = cache(lambda name: served_name(FOLDER / name))
