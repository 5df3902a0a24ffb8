"""Bugs that are planted on purpose where DAG files are parsed, and edited meanwhile."""

from dataclasses import replace
from typing import Any

from asynsched.parsing.dispatcher import ParseClaims
from asynsched.parsing.files import Files, Repeats
from asynsched.scheduling.loading import VersionCache
from asynsched.store.dags import parse_results
from asynsched.store.dags.dags import latest_version
from tests.faults.simulated.bug import Bug, Change
from tests.faults.simulated.conditions import Conditions
from tests.faults.simulated.people import FILE_EDITS


def _leaving_without_proof() -> list[Change]:
    change_of = parse_results._change

    def change(found: Any, known: Any, now: Any, defaults: Any) -> Any:
        change = change_of(found, known, now, defaults)
        return replace(change, removed=(*change.removed, *parse_results._remove_all_but(found.dags, found.path, known)))

    return [(parse_results, "_change", change)]


def _unseen_edit() -> list[Change]:
    ask = Files.ask

    def ask_unless_busy(self: Any, request: Any) -> None:
        if not self.is_busy(request.path):
            ask(self, request)

    return [(Files, "ask", ask_unless_busy)]


def _newest_code() -> list[Change]:
    get = VersionCache.get

    async def get_newest(self: Any, version_id: int) -> Any:
        wanted = await get(self, version_id)
        newest = await self.database.read(latest_version, wanted.structure.dag.dag_id)
        return await get(self, newest.id)

    return [(VersionCache, "get", get_newest)]


def _no_second_chance() -> list[Change]:
    return [(Repeats, "note_parsed", lambda *_: None)]


def _old_result() -> list[Change]:
    decide = parse_results.decide

    def decide_all(found: Any, _held: Any, *args: Any, **kwargs: Any) -> Any:
        return decide(found, {one.outcome.path for one in found}, *args, **kwargs)

    return [(parse_results, "decide", decide_all), (ParseClaims, "_is_done", lambda *_: True)]


EDITING = Conditions(people=FILE_EDITS)
BUGS_OF_PARSES: dict[str, Bug] = {
    "leaving-without-proof": Bug("The DAGs of a file that cannot be imported leave.", _leaving_without_proof, EDITING),
    "unseen-edit": Bug("A file that is edited during its parse is not parsed again.", _unseen_edit, EDITING),
    "newest-code": Bug("A run that is taken over goes on with the newest version.", _newest_code, EDITING),
    "no-second-chance": Bug("A file whose parse was killed is not parsed again.", _no_second_chance, EDITING),
    "old-result": Bug(
        "Another scheduler's parse is taken for the newest, even if it is older.",
        _old_result,
        Conditions(people=FILE_EDITS, n_sites=2),
    ),
}
