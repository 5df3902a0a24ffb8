"""Parses: what their processes are given, and the messages of the process that runs a DAG file to its guardian.

A process is given limits, an environment and jobs. Messages are lines of JSON on their own pipe:

    confined ─▶ hears? ─▶ (sourced | asked)* ─▶ imported ─▶ (sourced | asked)* ─▶ found

A guardian passes the questions for variables and connections on to the scheduler, one after the other, and the answers
back to the process, on another pipe.

The writer shares its process with user code, so a reader believes nothing: every line is decoded against these structs,
and any other line is kept as text, such as Python's own crash report.
"""

import hashlib
import os
import site
from collections import deque
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from asynsched.protocol.frames import UNDECODABLE
from asynsched.serialization.schema import (
    AirflowKind,
    FileError,
    ImportErrorEvent,
    ParsedDag,
    ParseQuestions,
    SourceFile,
)  # fmt: skip

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]

QUESTION = b"?"
"""Begins a line with an Asked or an Answered, between a guardian and the scheduler."""
MOST_QUESTIONS = 1_000
"""Variables and connections that a parse may ask for."""
MOST_NAME = 250
"""Characters of the name of a variable or a connection."""
LONGEST_WARNING = 1_000
"""Characters of a warning; a longer one is cut."""
LONGEST_FINDINGS = 3_000
"""Characters of a warning that lists things to change in a file; what does not fit is in a further one."""
MOST_OPTIONS = 1_000
"""Options of Airflow's configuration that a parse may name as read."""
STALE = b"stale\n"
"""A guardian's answer when packages were installed since its server started: ask another server."""
PACKAGE_VARIABLES = ("PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONPLATLIBDIR", "PYTHONUSERBASE")
"""Say where Python looks for packages: a parse finds those that a try finds."""
ALWAYS_KEPT = ("LANG", "LC_*", "TZ", "PATH", *PACKAGE_VARIABLES)
NEVER_KEPT = "ASYNSCHED_"


class ParseLimits(Struct, frozen=True):
    """Limits of one parse, given as JSON to `--limits`. Lengths are seconds, sizes bytes; defaults as in the settings.

    Unknown fields are ignored, so that a whole section of settings may be passed.
    """

    timeout: Seconds = 50.0
    import_timeout: Seconds = 30.0
    cpu_seconds: Count = 60
    memory_bytes: Count = 1024**3
    file_bytes: Count = 64 * 1024**2
    result_bytes: Count = 32 * 1024**2
    output_bytes: Count = 64 * 1024
    open_files: Count = 256
    max_processes: Count = 64
    readable: tuple[str, ...] = ()
    """Absolute paths that may be read, beside the DAG folder, Python's own and the system's."""
    writable: tuple[str, ...] = ()
    """Absolute paths that may be read and written, beside the scratch folder."""
    hidden: tuple[str, ...] = ()
    """Absolute paths that are never readable or writable, even inside such a path: the scheduler's home."""
    environment: tuple[str, ...] = ("AIRFLOW_VAR_*",)
    """Environment variables that are kept, beside `ALWAYS_KEPT`; `PREFIX_*` names many."""
    default_timezone: str = "UTC"
    airflow: Literal["ours", "installed", "off"] = "ours"
    airflow_options: dict[str, str] = {}
    """What `conf` of Airflow answers, by `section.key`, beside its defaults."""
    confinement: Literal["best_effort", "required", "off"] = "best_effort"
    network: bool = False
    """Whether a parse may connect to others by TCP and UDP."""


class Greeting(Struct, frozen=True):
    """The first line of a guardian: its process."""

    pid: int


class Job(Struct, frozen=True):
    """A file to parse, by its path in the DAG folder, and the questions to the authors' timetables in it."""

    path: str
    questions: ParseQuestions


def decode_limits(text: str) -> ParseLimits:
    """Return the limits in this JSON. Raises ValueError naming the wrong one."""
    try:
        return msgspec.json.decode(text, type=ParseLimits)
    except msgspec.DecodeError as exc:
        raise ValueError(f"--limits: {exc}") from exc


def is_kept(name: str, allowed: tuple[str, ...]) -> bool:
    """Return whether an allow-list names this environment variable."""
    if name.startswith(NEVER_KEPT):
        return False
    patterns = (*ALWAYS_KEPT, *allowed)
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns)


def variables_of_all_parses() -> dict[str, str]:
    """Return the environment variables that every parse has, independent of its parent's environment."""
    # A parse has no use for a thread per core, and no room for one. And it has another HOME than its user, where
    # Python would look for the user's packages.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return threads | {"PYTHONUSERBASE": site.getuserbase()}


def environment_of_parses(environment: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """Return the part of an environment that parses see."""
    return variables_of_all_parses() | {name: value for name, value in environment.items() if is_kept(name, allowed)}


def home_in(folder: str) -> dict[str, str]:
    """Return the variables of a process whose home and place for temporary files is this folder."""
    return dict.fromkeys(("HOME", "TMPDIR"), folder)


MAX_LINES_OF_TEXT = 1_000
"""More than Python's longest crash report; garbage beyond it is dropped."""


class Confined(Struct, frozen=True, tag="confined"):
    """User code is about to run, under this confinement."""

    enforced: tuple[str, ...]


class Refused(Struct, frozen=True, tag="refused"):
    """The process could not be confined as required, and ran nothing."""

    reason: str


class Hears(Struct, frozen=True, tag="hears"):
    """Listeners are loaded, and hear of errors. Sent before the file is imported, which may end the process."""

    events: tuple[ImportErrorEvent, ...]


class Loading(Struct, frozen=True, tag="loading"):
    """This plugin, or the policies, are about to be loaded, which may end the process; "": they all are."""

    plugin: Annotated[str, Meta(max_length=MOST_NAME)]


class Sourced(Struct, frozen=True, tag="sourced"):
    """A local source is about to be compiled."""

    source: SourceFile


class Asked(Struct, frozen=True, tag="asked"):
    """The file asks for a variable or a connection, and waits. `number` counts its questions."""

    kind: Literal["variable", "connection"]
    name: Annotated[str, Meta(max_length=MOST_NAME)]
    number: int


class Answered(Struct, frozen=True, omit_defaults=True):
    """The answer to the question of that number: the value of a variable, or the fields of a connection.

    `is_found` is false if there is none of that name; `error` says why there is no answer.
    """

    number: int
    value: Any = None
    is_found: bool = True
    error: str = ""


def answer_line(answer: Answered) -> bytes:
    """Return an answer as a guardian and a parse read it."""
    return QUESTION + msgspec.json.encode(answer) + b"\n"


class Imported(Struct, frozen=True, tag="imported"):
    """The DAG file's import is over."""


class Found(Struct, frozen=True, tag="found"):
    """The DAGs, errors and warnings of the file."""

    dags: tuple[ParsedDag, ...] = ()
    errors: tuple[FileError, ...] = ()
    warnings: tuple[FileError, ...] = ()
    airflow: AirflowKind = ""
    options: Annotated[tuple[Annotated[str, Meta(max_length=MOST_NAME)], ...], Meta(max_length=MOST_OPTIONS)] = ()
    """The options of Airflow's configuration that it has read, as `section.key`."""


Message = Confined | Refused | Hears | Loading | Sourced | Asked | Imported | Found


class Channel:
    """The writing end, for the process that made it: a child that user code forks writes nothing."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._owner = os.getpid()

    def send(self, message: Message) -> None:
        """Write one message. Raises OSError when user code has closed the pipe."""
        if os.getpid() != self._owner:
            return
        rest = memoryview(msgspec.json.encode(message) + b"\n")
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]


class Transcript:
    """Everything that was read: the latest message of each kind, the sources, and the other lines.

    `questions` has the questions that were read and not taken.
    """

    def __init__(self) -> None:
        self.confined: Confined | None = None
        self.refused: Refused | None = None
        self.hears: tuple[ImportErrorEvent, ...] = ()
        self.plugin = ""
        self.imported = False
        self.found: Found | None = None
        self.sources: dict[tuple[str, str], SourceFile] = {}
        self.questions: deque[Asked] = deque()
        self.size = 0
        self._buffer = bytearray()
        self._text: list[str] = []
        self._decoder = msgspec.json.Decoder(Message)

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._buffer) + lines[0]
            self._buffer.clear()
        for line in lines:
            self._take(line)
        self._buffer += rest

    @property
    def text(self) -> str:
        """The lines that are not messages: a crash report of Python's, or garbage."""
        return "\n".join([*self._text, self._buffer.decode("utf-8", "replace")])

    def _take(self, line: bytes) -> None:
        try:
            message = self._decoder.decode(line)
        except UNDECODABLE:
            if len(self._text) < MAX_LINES_OF_TEXT:
                self._text.append(line[:1000].decode("utf-8", "replace"))
        else:
            self._note(message)

    def _note(self, message: Message) -> None:
        match message:
            case Confined():
                self.confined = message
            case Refused():
                self.refused = message
            case Hears():
                self.hears = message.events
            case Loading():
                self.plugin = message.plugin
            case Imported():
                self.imported = True
            case Found():
                self.found = message
            case Asked():
                self.questions.append(message)
            case Sourced(source=source) if _is_honest(source):
                self.sources[source.path, source.module] = source


def encodable(text: str) -> str:
    """Return a text of user code's with halves of surrogate pairs, which no JSON has, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_honest(source: SourceFile) -> bool:
    """Whether a source has the hash that it claims, and its path stays in the DAG folder."""
    path = PurePosixPath(source.path)
    digest = hashlib.sha256(source.text.encode("utf-8", "surrogatepass")).hexdigest()
    return not path.is_absolute() and ".." not in path.parts and digest == source.content_hash
