"""Whether the events of assets that have arrived are those that a DAG waits for.

Source: Apache Airflow's AssetEvaluator. An event counts until a run consumes it, however long ago it came. An alias is
met by an event of any asset that it was found to stand for.
"""

from collections.abc import Collection

from asynsched.scheduling.rules.verdict import MET, Verdict
from asynsched.timetables.asset_condition import AssetCondition, AssetNames


def evaluate(condition: AssetCondition, arrived: Collection[AssetNames]) -> Verdict:
    """Return whether a run is to be made, and if not, what is missing for it."""
    missing = _missing(condition, frozenset(arrived))
    return Verdict(met=False, reason=f"it waits for events of {missing}") if missing else MET


def _missing(condition: AssetCondition, arrived: frozenset[AssetNames], *, inner: bool = False) -> str:
    """Return in words what a condition lacks; empty when it is met."""
    if condition.is_leaf:
        return "" if any(condition.names(asset) for asset in arrived) else condition.label
    lacking = [_missing(part, arrived, inner=True) for part in condition.parts]
    if condition.any is not None:
        return "" if "" in lacking else _joined(" or ", lacking, inner=inner)
    return _joined(" and ", [words for words in lacking if words], inner=inner)


def _joined(word: str, words: list[str], *, inner: bool) -> str:
    text = word.join(words)
    return f"({text})" if inner and len(words) > 1 else text
