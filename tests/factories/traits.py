"""A trait that no code names."""

from __future__ import annotations

import pytest

from ppopt.problem import traits
from ppopt.problem.traits import Trait


def novel_trait(monkeypatch: pytest.MonkeyPatch) -> Trait:
    """Give every pipeline that is made from now on a trait that no code names."""
    trait = str.__new__(Trait, "novel")
    trait._name_, trait._value_, trait.label = "NOVEL", "novel", "novelty"
    monkeypatch.setitem(traits.OF_PIPELINE, trait, lambda _: True)
    return trait
