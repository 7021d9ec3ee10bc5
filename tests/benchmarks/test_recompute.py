"""The benchmark of recompute: its limits, and how points are counted and drawn."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from benchmarks import recompute
from benchmarks.recompute import Point

pytestmark = pytest.mark.slow


def made(limit: int, none: int | None, full: int, search: int | None) -> Point:
    values = {"none": none, "full": full, "search": search}
    shown = {name: None if one is None else Fraction(one) for name, one in values.items()}
    return Point("model", Fraction(limit), shown, (1, 0), Fraction(1, 50))


def test_chosen_counts_as_worse_only_where_another_is_better() -> None:
    assert not made(10, 5, 6, 5).worse
    assert not made(10, None, 6, 5).worse
    assert made(10, 5, 6, 7).worse
    assert made(10, None, 6, None).worse


def test_limits_lie_evenly_between_full_and_no_recompute() -> None:
    """The first of 4 devices holds the embedding (3758) and 8 blocks of 8B: 1560 static each, 1088
    for each of 4 microbatches, and 736 that a backward needs while it runs."""
    limits = recompute.limits("llama-3.1-8b")
    steps = [high - low for low, high in pairwise(limits)]
    assert len(limits) == 4 and len(set(steps)) == 1
    assert limits[-1] == 3758 + 8 * (1560 + 4 * 1088) + 736


def test_a_picture_has_a_curve_for_each_choice() -> None:
    points = [made(10, None, 6, 5), made(20, 4, 6, 4)]
    drawn = ET.fromstring(recompute.picture(points))
    lines = [one for one in drawn.iter() if one.tag.endswith("polyline")]
    assert [len(one.attrib["points"].split()) for one in lines] == [1, 2, 2]
