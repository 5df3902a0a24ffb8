"""Fixtures for programs that embed a scheduler."""

import pytest

from tests.support.embedding import HANGS, Program


@pytest.fixture
def program(tmp_path, monkeypatch) -> Program:
    """Return a program whose tasks know where to say that they hang."""
    embedding = Program(tmp_path)
    monkeypatch.setenv(HANGS, str(embedding.hangs))
    return embedding
