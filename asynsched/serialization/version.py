"""What makes two parses of a DAG the same version: its structure, and what its code means."""

import ast
import hashlib
import warnings
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from asynsched.serialization.schema import SerializedDag, SourceFile

_canonical = msgspec.json.Encoder(order="sorted")


def version_hash(dag: SerializedDag, sources: Sequence[SourceFile]) -> str:
    """Return the version of a DAG: 64 hexadecimal digits.

    It depends on the serialized structure, and on the names and syntax trees of the sources. A comment, a blank line
    or another layout changes nothing; a docstring does. Python's own version may: a new one may write other trees.
    """
    digest = hashlib.sha256(_canonical.encode(dag))
    for source in sorted(sources, key=lambda source: (source.path, source.module)):
        for part in (source.path, source.module, _meaning(source.text)):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(f"\n{len(data)}:".encode())
            digest.update(data)
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _meaning(text: str) -> str:
    """Return a digest of a text's syntax tree without positions; of the text itself if it is no Python, or too deep.

    Remembered, because a file of thousands of DAGs asks for the same texts for each of them.
    """
    return hashlib.sha256(_tree(text).encode("utf-8", "surrogatepass")).hexdigest()


def _tree(text: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.dump(ast.parse(text), annotate_fields=False)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
