"""How values are shown: times in the chosen zone, lengths of time, states, Markdown, and short forms of long texts."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup

from asynsched.serialization.schema import SerializedTask

MOST_CHARACTERS = 100_000
"""Of a text within a page."""
MARKDOWN_TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
NO_STATE = "none"
_SHOWN_CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}
_HEADING = re.compile(r"</?h([1-6])>")
_PRECISION = re.compile(r"(\.\d{6})?\+00:00$")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00")
STATES: Mapping[str, str] = {
    "success": "✓", "failed": "✕", "running": "▶", "queued": "·", "scheduled": "·", "up_for_retry": "↻",
    "up_for_reschedule": "↻", "upstream_failed": "!", "skipped": "–", "deferred": "‖", "awaiting_input": "?",
    "removed": "×", "restarting": "↻", NO_STATE: " ",
}  # fmt: skip
"""The sign of each state: colour is never the only difference."""


class Showing(NamedTuple):
    """Shows times in a zone, and ages at a moment."""

    zone: ZoneInfo
    now: datetime

    def time(self, at: datetime | None, *, seconds: bool = True) -> Markup:
        """Return an instant in the zone, and its age as a hint."""
        if at is None:
            return Markup('<span class="nothing">–</span>')
        try:
            local = at.astimezone(self.zone)
        except OverflowError:  # at an end of the calendar
            local = at.astimezone(UTC)
        text = local.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")
        stamp = at.astimezone(UTC).isoformat(timespec="seconds")
        hint = f"{self.age(at)}, {local.tzname()}"
        # Markup.format would take longer than all the rest, and a list has hundreds of times. Nothing in them is HTML.
        return Markup(f'<time datetime="{stamp}" title="{hint}">{text}</time>')  # noqa: S704

    def text(self, text: str) -> str:
        """Return a sentence with its moments, which are in UTC, in the zone."""
        return _MOMENT.sub(self._local, text)

    def _local(self, found: re.Match[str]) -> str:
        try:
            local = datetime.fromisoformat(found[0]).astimezone(self.zone)
        except (ValueError, OverflowError):
            return found[0]
        return local.strftime("%Y-%m-%d %H:%M:%S")

    def age(self, at: datetime) -> str:
        """Return how long ago an instant was, or how far ahead it is."""
        gap = self.now - at
        return f"{duration(gap)} ago" if gap >= timedelta() else f"in {duration(-gap)}"

    def took(self, start: datetime | None, end: datetime | None) -> str:
        """Return the time between two instants; up to now without an end."""
        return "" if start is None else duration((end or self.now) - start)


def duration(length: timedelta | float | None) -> str:
    """Return a length of time for people: `8 ms`, `0.8 s`, `42 s`, `3 min 5 s`, `2 h 10 min`, `5 d 3 h`."""
    if length is None:
        return ""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds <= 0:
        return "0 s"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


@lru_cache(maxsize=64)
def state(name: str | None) -> Markup:
    """Return a state with its colour and its sign."""
    shown = name or NO_STATE
    known = shown if shown in STATES else NO_STATE
    return Markup('<span class="state {}"><span class="sign" aria-hidden="true">{}</span>{}</span>').format(
        known.replace("_", "-"), STATES[known], "no state" if name is None else shown.replace("_", " ")
    )


def state_class(name: str | None) -> str:
    """Return the class of a state's colour."""
    return name.replace("_", "-") if name is not None and name in STATES else NO_STATE


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def markdown(text: str | None) -> Markup:
    """Return Markdown of a user as HTML, without HTML of its own, scripts, pictures and other outside things."""
    made = _markdown().render((text or "")[:MOST_CHARACTERS])
    clean = nh3.clean(
        made, tags=MARKDOWN_TAGS, attributes={"a": {"href"}}, url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )  # fmt: skip
    # Headings of the text come below the title of the page, without gaps between their levels.
    levels = sorted({*_HEADING.findall(clean)})
    clean = _HEADING.sub(lambda found: f"{found[0][:-2]}{min(levels.index(found[1]) + 2, 6)}>", clean)
    return Markup(f'<div class="markdown">{clean}</div>')  # noqa: S704 - sanitised above


def as_json(value: Any) -> str:
    """Return a value as JSON for people; of a very long one the beginning."""
    try:
        text = json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False, default=repr)
    except RecursionError:  # of the indentation, which is made in Python
        text = msgspec.json.encode(value).decode()
    return shortened(text, MOST_CHARACTERS)


def shortened(text: str | None, longest: int = 120) -> str:
    """Return a text, or its beginning and an ellipsis."""
    return "" if text is None else text if len(text) <= longest else f"{text[: longest - 1]}…"


def plain(text: str) -> str:
    """Return a text of a process with control characters as pictures: it cannot move the cursor, or hide a part."""
    return text.replace("\r\n", "\n").translate(_SHOWN_CONTROLS)


def run_name(run_id: str) -> str:
    """Return a run_id without the fraction and the offset of its time, and shortened."""
    return shortened(_PRECISION.sub("", run_id), 44)


def first_line(text: str | None) -> str:
    """Return the first line of a text, shortened."""
    lines = (text or "").strip().splitlines()
    return shortened(lines[0] if lines else "", 200)


def after_place(message: str, file: str) -> str:
    """Return an error's message without the file, and the line, at its beginning: the page shows them before it."""
    place, _, rest = message.partition(": ")
    return rest if place.rstrip("0123456789").rstrip(":") == file else message


def by_try(task: SerializedTask, name: str) -> str:
    """Return the pool or the queue of a task; in the order of its tries, if a policy gives them several."""
    values = [getattr(found, name) for found in task.routes or (task,)]
    return ", then ".join(value for value, _ in groupby(values))


def count(n: int, word: str) -> str:
    """Return a number with its noun."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": duration, "state": state, "state_class": state_class, "markdown": markdown, "as_json": as_json,
    "shortened": shortened, "first_line": first_line, "run_name": run_name, "count": count, "plain": plain,
    "after_place": after_place, "by_try": by_try,
}  # fmt: skip
