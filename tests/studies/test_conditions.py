"""Conditions of a sweep: what they say, and that they can say nothing else."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.studies.conditions import Condition

ROW = {"chunks": 2, "batches": 16, "placement": "v", "p2p_time": 0.5, "limit": None}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("chunks < 2 or batches >= 16", True),
        ("chunks < 2 and batches >= 16", False),
        ("not chunks == 2", False),
        ("batches % 4 == 0", True),
        ("batches // 3 == 5", True),
        ("batches / 32 == 0.5", True),
        ("chunks * batches - 2 + 1 == 31", True),
        ("1 < chunks < 3 <= batches", True),
        ("placement in ['v', 'linear']", True),
        ("placement not in ('v',)", False),
        ('placement != "v"', False),
        ("limit == None", True),
        ("p2p_time == 0.5", True),
        ("-chunks == -2", True),
        ("(chunks == 1) == (batches < 8)", True),
        ("True", True),
    ],
)
def test_what_holds(text: str, wanted: bool) -> None:
    assert Condition(text).holds(ROW) is wanted


def test_arithmetic_is_pythons() -> None:
    condition = Condition("a + b * c - a < b and not a == c or (b - c) * 2 >= a")
    for one, two, three in product(range(-3, 4), repeat=3):
        wanted = (one + two * three - one < two and one != three) or (two - three) * 2 >= one
        assert condition.holds({"a": one, "b": two, "c": three}) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "chunks.bit_length() == 2",
        "open('x')",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "chunks ** 2 == 4",
        "chunks if batches else 2",
        "f'{chunks}'",
        "b'v' == placement",
        "{1: 2}",
        "chunks := 2",
        "chunks is None",
        "1 << 3",
        "placement[0] == 'v'",
        "1j",
        "...",
        "",
        "chunks <",
        "chunks == '",
        "chunks\x00",
        "(" * 400 + ")" * 400,
        "1 + " * 300 + "1",
        "-" * 990 + "1",
        "1 <" + "-" * 900 + "chunks",
        "not " * 240 + "chunks",
        "1+" * 490 + "1",
    ],
)
def test_nothing_else_can_be_said(text: str) -> None:
    with pytest.raises(InputError, match="where: ") as raised:
        Condition(text)
    assert len(str(raised.value)) < 300


def test_a_long_condition_of_few_levels_holds() -> None:
    """`or` of many comparisons is one level, however many there are."""
    many = " or ".join(["chunks == 1"] * 60)
    assert Condition(f"{many} or chunks == 2").holds(ROW)
    assert Condition("1 + " * 40 + "1 == 41").holds(ROW)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stages == 2", "stages is no setting of this sweep"),
        ("placement < 2", "cannot be computed for placement=v"),
        ("limit < 2", "cannot be computed for limit=None"),
        ("chunks % 0 == 1", "cannot be computed"),
        ("placement * 1000000000 == 'v'", "cannot be computed"),
        ("chunks in placement", "cannot be computed"),
    ],
)
def test_what_says_nothing_of_a_row(text: str, words: str) -> None:
    with pytest.raises(InputError, match="where: ") as raised:
        Condition(text).holds(ROW)
    assert words in str(raised.value)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abc12 <>=!()[]'\"andornt.,%*/\\", max_size=40))
def test_any_text_is_a_condition_or_is_refused(text: str) -> None:
    with suppress(InputError):
        condition = Condition(text)
        condition.holds(dict.fromkeys(condition.names, 1))
