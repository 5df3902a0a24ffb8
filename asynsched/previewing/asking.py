"""A preview for a scheduler that serves, made in a process of its own."""

import os
from datetime import datetime

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct

from asynsched.queries.context import QueryContext
from asynsched.queries.own_process import answer_of
from asynsched.queries.paging import BadRequest
from asynsched.queries.preview import Preview
from asynsched.settings import Settings

LONGEST_HOURS = 24 * 31


class PreviewWanted(Struct, frozen=True, kw_only=True):
    """The options of a preview, as `asynsched preview` has them, for the process that makes it."""

    settings: Settings
    where: str
    against: str | None
    hours: float
    pools: dict[str, int]
    now: datetime


async def preview_commit(
    context: QueryContext, where: str, against: str | None, *, hours: float, pools: dict[str, int] | None = None
) -> Preview:
    """Return the changes that a commit of the DAG folder's repository would make before it is live.

    Args:
        where: The name of the commit: a branch, a tag, a hash.
        against: Another commit to compare with; None: the DAGs that the database has.
        hours: Simulate this span of time from now on; 0 for no simulation.
        pools: Slots of pools that exist or will, by name.

    Raises:
        BadRequest: The name is that of a folder.
        AsynschedError: There is no such commit, or this takes too long.
    """
    wanted = PreviewWanted(
        settings=context.settings_elsewhere, where=where, against=against, hours=hours, pools=pools or {},
        now=context.clock.now(),
    )  # fmt: skip
    if await run_sync(_names_folder, where) or (against is not None and await run_sync(_names_folder, against)):
        raise BadRequest("Name commits here, such as a branch, a tag or a hash, and not folders of this machine.")
    content = await answer_of("asynsched.previewing", msgspec.json.encode(wanted), command="asynsched preview")
    return await run_sync(lambda: msgspec.json.decode(content, type=Preview))


def _names_folder(where: str) -> bool:
    # No name of a commit begins so: the answer does not tell whether there is such a file.
    return where.startswith(("/", ".", "~")) or "\0" in where or os.path.exists(where)  # noqa: PTH110 - a name of a commit may be too long for a path
