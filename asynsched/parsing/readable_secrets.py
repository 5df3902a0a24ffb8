"""The variables and connections that DAG files read while they are parsed, and the options of Airflow's configuration.

The settings decide which ones a parse may have. The dispatcher stores the requests of each file's parse,
with a digest of each answer, and parses the file again when an answer has changed.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import anyio.to_thread
import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from asynsched.authoring.masking import CUT
from asynsched.errors import DatabaseMissing, NotFound, SecretsUnreadable, StoreError, StoreUnavailable
from asynsched.fernet_keys import keys_of
from asynsched.protocol.parse_messages import LONGEST_WARNING, Answered, Asked, ParseLimits
from asynsched.protocol.secrets import MAX_SECRETS, Secrets
from asynsched.serialization.asked_names import AskedName
from asynsched.serialization.schema import FileError, ParseReport
from asynsched.settings import ParseSettings, Settings
from asynsched.store.engines.opening import HEAD, connect_direct, current_revision, file_exists
from asynsched.store.engines.urls import parse_url
from asynsched.store.rows import storable
from asynsched.store.schema import VariableRow
from asynsched.store.secrets import Sealed, digests_of, sealed

MOST_ANSWER_BYTES = 1024**2
"""Size of the largest answer."""
MOST_BYTES_OF_ANSWERS = 32 * 1024**2
"""Of all answers to one parse together. One that is given again counts again: a parse asks once."""
MOST_BYTES_ON_LOOP = 64 * 1024
"""Larger answers are decrypted, searched and encoded by a thread."""
LONGEST_MESSAGE = 4_000
LONGEST_TRACEBACK = 64 * 1024
"""Characters of an error that is masked: more than a parse process writes by itself."""
MOST_TEXT = 1024**2
"""Characters in which secrets are looked for, in all texts of a report together; errors come first."""
IN_A_TASK = "read it in a task"
REFUSED = "refused"
"""The digest of an answer that the settings do not allow."""
Key = tuple[str, str]
"""Kind and name of an AskedName."""
Read = Callable[..., Awaitable[Any]]
"""Runs a query: `Database.read`, or the like."""


class ReadableSecrets:
    """The stored variables and connections, as far as the settings allow parses to read them.

    Args:
        read: Runs a query.
    """

    def __init__(self, settings: ParseSettings, read: Read) -> None:
        self._settings = settings
        self._read = read

    async def answer(self, asked: Asked) -> tuple[Answered, str]:
        """Return the answer to a question, and its digest. Raises StoreUnavailable: then the parse begins again."""
        if (refusal := refused(asked.kind, asked.name, self._settings)) is not None:
            return Answered(asked.number, error=refusal), REFUSED
        try:
            found, digest = await self._read(stored_secret, asked)
        except StoreUnavailable:
            raise
        except DatabaseMissing:
            return _missing(asked), ""
        except StoreError as exc:
            return Answered(asked.number, error=f"the {asked.kind} {asked.name!r}: {exc}"), ""
        if isinstance(found, Answered):
            return found, digest
        if found.size <= MOST_BYTES_ON_LOOP:
            return _opened(asked, found), digest
        return await anyio.to_thread.run_sync(_opened, asked, found), digest

    async def digests(self, keys: Collection[Key]) -> dict[Key, str]:
        """Return the digests of the present answers about these variables and connections."""
        allowed = sorted(key for key in keys if refused(*key, self._settings) is None)
        found: dict[Key, str] = await self._read(_digests, allowed) if allowed else {}
        return dict.fromkeys(keys, REFUSED) | dict.fromkeys(allowed, "") | found


def secrets_of_home(settings: Settings) -> ReadableSecrets:
    """Return the variables and connections for parses without a scheduler; each question opens the database.

    The database is neither made nor changed: there is nothing in one that a scheduler would make or migrate first.
    """

    async def read(query: Callable[..., Any], *args: Any) -> Any:
        url = parse_url(settings.database_url)
        if not file_exists(url):
            raise DatabaseMissing(url.shown)
        try:
            with connect_direct(url, keys=keys_of(settings)) as database:
                if database.read(current_revision) != HEAD:
                    raise DatabaseMissing(url.shown)
                return database.read(query, *args)
        except StoreUnavailable as exc:
            raise StoreError(str(exc)) from exc  # a command does not wait

    return ReadableSecrets(settings.parse, read)


def refused(kind: str, name: str, settings: ParseSettings) -> str | None:
    """Return why a parse may not read a variable or a connection; None if it may."""
    setting = f"parse.{kind}s"
    patterns: tuple[str, ...] = getattr(settings, f"{kind}s")
    if any(fnmatchcase(name, pattern) for pattern in patterns):
        return None
    allows = f"allows only {', '.join(map(repr, patterns))}" if patterns else "allows none"
    return (
        f"the {kind} {name!r} may not be read while a DAG file is parsed: the setting {setting} {allows}; add {name!r}"
        " to it, or read it in a task"
    )


def _missing(asked: Asked) -> Answered:
    return Answered(asked.number, is_found=False, error=f"there is no {asked.kind} {asked.name!r}")


def stored_secret(conn: Connection, asked: Asked) -> tuple[Sealed | Answered, str]:
    """Return what is stored, or why there is no answer; and the digest."""
    kind, name = asked.kind, asked.name
    if storable(name) != name:
        return _missing(asked), ""
    # Read first: if the value changes in between, the digest is of the older one, and the file is parsed again.
    digest = _digests(conn, [(kind, name)])[kind, name]
    try:
        return sealed(conn, kind, name), digest
    except NotFound:
        return _missing(asked), ""
    except SecretsUnreadable as exc:
        return Answered(asked.number, error=f"the {kind} {name!r}: {exc}"), digest


def _opened(asked: Asked, found: Sealed) -> Answered:
    kind, name = asked.kind, asked.name
    try:
        row = found.open()
    except SecretsUnreadable as exc:
        return Answered(asked.number, error=f"the {kind} {name!r}: {exc}")
    value = row.value if isinstance(row, VariableRow) else msgspec.structs.asdict(row)
    answer = Answered(asked.number, value)
    if (size := len(msgspec.json.encode(answer))) > MOST_ANSWER_BYTES:
        return Answered(asked.number, error=f"the {kind} {name!r} has {size} bytes, too many for a parse; {IN_A_TASK}")
    return answer


def _digests(conn: Connection, keys: Iterable[Key]) -> dict[Key, str]:
    found = {(kind, name): "" for kind, name in keys if storable(name) == name}
    kinds: tuple[Literal["variable", "connection"], ...] = ("variable", "connection")
    for kind in kinds:
        names = [name for one, name in found if one == kind]
        found |= {(kind, name): digest for name, digest in digests_of(conn, kind, names).items()}
    return found


def option_digest(options: Mapping[str, str], name: str) -> str:
    """Return the digest of an option of Airflow's configuration, as parses get it; empty if they do not."""
    return sha256(options[name].encode()).hexdigest() if name in options else ""


def with_other_options(asked: Iterable[AskedName], options: Mapping[str, str]) -> bool:
    """Return whether a parse has read an option that has another value now."""
    return any(one.kind == "option" and one.digest != option_digest(options, one.name) for one in asked)


class Asking:
    """The questions of one parse. Each variable and connection is read once: a parse sees one value of it."""

    def __init__(self, readable: ReadableSecrets | None) -> None:
        self._readable = readable
        self._asked: dict[Key, AskedName] = {}
        self._answers: dict[Key, _Given] = {}
        self._n_bytes = 0
        self._secrets = Secrets()
        self._has_too_many_secrets = False

    @property
    def asked(self) -> tuple[AskedName, ...]:
        return tuple(self._asked.values())

    async def answer(self, asked: Asked) -> Answered:
        """Return the answer to a question. Raises StoreUnavailable."""
        key = (asked.kind, asked.name)
        if self._readable is None:
            return Answered(asked.number, error=f"the {asked.kind} {asked.name!r}: there is no database to ask")
        if key not in self._answers:
            answer, digest = await self._readable.answer(asked)
            self._asked[key] = AskedName(asked.kind, asked.name, digest)
            self._answers[key] = await self._given(asked, answer)
        given = self._answers[key]
        self._n_bytes += given.size
        if self._n_bytes > MOST_BYTES_OF_ANSWERS:
            error = (
                f"the {asked.kind} {asked.name!r}: the file has read more than {MOST_BYTES_OF_ANSWERS // 1024**2} MiB"
                f" of variables and connections, too much for a parse; {IN_A_TASK}"
            )
            return Answered(asked.number, error=error)
        return replace(given.answer, number=asked.number)

    async def _given(self, asked: Asked, answer: Answered) -> "_Given":
        """Learn the secrets in an answer, and return it as it is given."""
        given = _Given(answer, _size(answer.value))
        if given.size <= MOST_BYTES_ON_LOOP:
            self._learn(asked, answer)
            return given
        return await anyio.to_thread.run_sync(self._learned_and_encoded, asked, given)

    def _learned_and_encoded(self, asked: Asked, given: "_Given") -> "_Given":
        self._learn(asked, given.answer)
        # It is not encoded once more, on the event loop, when it is sent.
        return given._replace(answer=replace(given.answer, value=msgspec.Raw(msgspec.json.encode(given.answer.value))))

    def _learn(self, asked: Asked, answer: Answered) -> None:
        if self._has_too_many_secrets or answer.value is None:
            return
        operation = "variable_get" if asked.kind == "variable" else "connection_get"
        self._secrets.learn(operation, {"key": asked.name}, answer.value)
        self._has_too_many_secrets = len(self._secrets.values) > MAX_SECRETS

    async def completed(self, report: ParseReport, limits: ParseLimits) -> ParseReport:
        """Return the report of the parse with everything that it has asked for, and without the secrets it was given.

        `limits`: The limits of the parse, with its options of Airflow's configuration.
        """
        options = limits.airflow_options
        read = [replace(one, digest=option_digest(options, one.name)) for one in report.asked if one.kind == "option"]
        report = replace(report, asked=(*self.asked, *read))
        if not self._secrets:
            return report
        secrets = None if self._has_too_many_secrets else self._secrets
        return await anyio.to_thread.run_sync(masked, report, secrets, limits.output_bytes)


class _Given(NamedTuple):
    """An answer, and the bytes of its value."""

    answer: Answered
    size: int


def _size(value: Any) -> int:
    texts = value.values() if isinstance(value, dict) else (value,)
    return sum(len(text) for text in texts if isinstance(text, str))


NOT_SHOWN = "(This text is not shown: the file has read too many secrets to mask them all in it.)"


def masked(report: ParseReport, secrets: Secrets | None, output_bytes: int) -> ParseReport:
    """Return a report whose texts for people do not show these secrets.

    Args:
        secrets: None: there are too many to look for, so no text of user code is shown.
        output_bytes: The limit of the output: an output of that length was cut.
    """
    room = MOST_TEXT

    def hide(text: str, longest: int, *, is_cut: bool) -> str:
        nonlocal room
        if not text:
            return text
        if len(text) > longest:
            text, is_cut = text[:longest], True
        room -= len(text)
        if secrets is None or room < 0:
            return NOT_SHOWN
        # A piece of a secret may be left where a text was cut.
        return secrets.mask_cut_text(f"{text}{CUT}").removesuffix(CUT) if is_cut else secrets.mask_cut_text(text)

    def hide_in(errors: Iterable[FileError], most: int) -> tuple[FileError, ...]:
        return tuple(
            replace(
                one,
                message=hide(one.message, LONGEST_MESSAGE, is_cut=len(one.message) >= most),
                traceback=hide(one.traceback, LONGEST_TRACEBACK, is_cut=False),
            )
            for one in errors
        )

    is_cut = len(report.output.encode()) >= output_bytes
    output = report.output.rstrip("\ufffd") if is_cut else report.output  # a part of a character
    return replace(
        report,
        errors=hide_in(report.errors, LONGEST_MESSAGE),
        warnings=hide_in(report.warnings, LONGEST_WARNING),
        output=hide(output, output_bytes, is_cut=is_cut),
    )
