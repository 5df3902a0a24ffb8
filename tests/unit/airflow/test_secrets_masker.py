"""A masker hides the secrets of its process, and lets derived classes look into their objects."""

from enum import Enum
from types import SimpleNamespace

import pytest

from asynsched import mask_secret
from asynsched.airflow.secrets_masker import SecretsMasker, secrets_masker, should_hide_value_for_key
from asynsched.authoring import masking


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    monkeypatch.setattr(masking, "_known", set())


class Colour(Enum):
    RED = "hunter2 red"


class LooksIntoObjects(SecretsMasker):
    """As OpenLineage's, whose other masker gives it patterns and replacer."""

    def _redact(self, item, name, depth, max_depth, **kwargs):
        if isinstance(item, SimpleNamespace):
            return SimpleNamespace(
                **{key: self._redact(value, key, depth + 1, max_depth, **kwargs) for key, value in vars(item).items()}
            )
        return super()._redact(item, name, depth, max_depth, **kwargs)


def test_a_masker_hides_known_secrets_and_fields_of_secret_names():
    mask_secret("hunter2")
    given = {"a": ["by hunter2", ("hunter2", 1)], "password": {"b": ["x", 2]}, "c": Colour.RED, 3: "plain"}
    assert secrets_masker().redact(given) == {
        "a": ["by ***", ("***", 1)], "password": {"b": ["***", 2]}, "c": "*** red", 3: "plain",
    }  # fmt: skip
    assert SecretsMasker().redact("x", name="api_key", replacement="?") == "?"


def test_a_masker_hides_fields_of_secret_names_at_every_level():
    mask_secret("hunter2")
    assert secrets_masker().redact([[["hunter2", {"token": "t", "secret": [["x"]]}]]], max_depth=2) == [
        [["hunter2", {"token": "***", "secret": "***"}]]
    ]
    endless = []
    endless.append(endless)
    assert secrets_masker().redact(endless) == "<redaction-failed>"


def test_a_derived_masker_looks_into_its_objects_wherever_they_are():
    masker = LooksIntoObjects()
    masker.patterns, masker.replacer = secrets_masker().patterns, secrets_masker().replacer
    masker.add_mask("hunter2")
    given = {"job": [SimpleNamespace(owner="hunter2", token="t", size=1)]}
    assert masker.redact(given) == {"job": [SimpleNamespace(owner="***", token="***", size=1)]}


def test_a_key_that_is_no_text_hides_nothing():
    assert should_hide_value_for_key("My_Password")
    assert not should_hide_value_for_key("name")
    assert not should_hide_value_for_key(1)
