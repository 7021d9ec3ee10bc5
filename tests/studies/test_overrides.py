"""Hydra's override grammar: our reader against Hydra's own parser."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.studies.overrides import MAX_DEPTH, Override, parse

HYDRA = OverridesParser.create()


def by_hydra(text: str) -> list[Any]:
    """The values that Hydra's parser gives for an override."""
    override = HYDRA.parse_override(text)
    if override.is_sweep_override():
        return [_plain(value) for value in override.sweep_iterator()]
    return [_plain(override.value())]


def _plain(value: Any) -> Any:
    """Without Hydra's quotes; fractions as Hydra reads them."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    text = getattr(value, "text", value)
    return text.replace("\\'", "'") if hasattr(value, "text") else value


def as_floats(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [as_floats(entry) for entry in value]
    return float(value) if isinstance(value, Decimal) else value


@pytest.mark.parametrize(
    "text",
    [
        "batches=8",
        "batches=8,16,32",
        "batches=8, 16 ,32",
        "batches=range(8,65,8)",
        "batches=range(3)",
        "batches=range(1,5)",
        "batches=range(10,0,-3)",
        "batches=choice(8,16)",
        "p2p_time=0.5,1.25,1e3",
        "p2p_time=range(0.5,2.5,0.5)",
        "strategy=searched,1f1b,zb-1p,v-min",
        "mem-limit=80GiB,1f1b,6",
        "mem_limit=null,true,4",
        "partition=[7,7,7,5],even,balanced",
        "partition=[[1,2],[3]],[]",
        "partition='Et*6|(t*7|)*2t*4L',balanced",
        'partition="Et*3|t,m|L"',
        "placement=[0,1,1,0],v",
        "name='it\\'s','a \"b\"'",
        "fused=true,false,TRUE",
        "seed=-1,+2",
        "name=a b c,d.e/f:g",
    ],
)
def test_as_hydra_reads_it(text: str) -> None:
    assert as_floats(list(parse(text).values)) == by_hydra(text)


VALUES = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.decimals(-1000, 1000, places=3).map(str),
    st.sampled_from(["null", "true", "False", "v", "1f1b", "80GiB", "zb-1p", "a.b", "8x"]),
)
LISTS = st.lists(VALUES, min_size=1, max_size=3).map(lambda values: f"[{','.join(values)}]")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(VALUES, LISTS), min_size=1, max_size=4))
def test_generated_lists_are_as_hydra_reads_them(values: list[str]) -> None:
    text = f"key={','.join(values)}"
    assert as_floats(list(parse(text).values)) == by_hydra(text)


@settings(max_examples=60, deadline=None)
@given(st.integers(-30, 30), st.integers(-30, 30), st.integers(-5, 5).filter(bool))
def test_ranges_are_pythons(start: int, stop: int, step: int) -> None:
    wanted = tuple(range(start, stop, step))
    if not wanted:
        with pytest.raises(InputError, match="no value"):
            parse(f"key=range({start},{stop},{step})")
    else:
        assert parse(f"key=range({start},{stop},{step})") == Override("key", wanted)


def test_numbers_of_many_digits_are_read() -> None:
    digits = "7" * 300
    assert parse(f"key={digits},0.{digits}").values == (int(digits), Decimal(f"0.{digits}"))


def test_lists_within_lists_are_read_up_to_a_depth() -> None:
    """A list ends before the next begins: only those that are open count."""
    nested = f"{'[' * MAX_DEPTH}1{']' * MAX_DEPTH}"
    assert len(parse(f"key={','.join([nested] * 3)}").values) == 3
    with pytest.raises(InputError, match="nested too deeply"):
        parse(f"key=[{nested}]")


def test_fractions_are_decimals() -> None:
    """A float of 0.1 is not 0.1."""
    assert parse("p2p=0.1,range").values == (Decimal("0.1"), "range")
    assert parse("p2p=range(0,0.3,0.1)").values == (Decimal(0), Decimal("0.1"), Decimal("0.2"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batches", "no sweep of a setting"),
        ("=8", "no sweep of a setting"),
        ("--batches=8", "no sweep of a setting"),
        ("a b=8", "no sweep of a setting"),
        ("batches=", "a value is missing"),
        ("batches=8,", "a value is missing"),
        ("batches=,8", "a value is missing"),
        ("batches=8,,9", "a value is missing"),
        ("batches=range(1,2", ") is missing"),
        ("batches=range()", "a value is missing"),
        ("batches=range(1,2,0)", "the step is 0"),
        ("batches=range(1,a)", "range takes"),
        ("batches=range(1,2,3,4)", "range takes"),
        ("batches=range(true)", "range takes"),
        ("batches=range(0,10000000)", "at most"),
        ("batches=range(1,3),8", "something follows"),
        ("partition=[1,2", "] is missing"),
        ("partition=1,2]", "something follows"),
        ("partition=Et|(tt|)", "something follows"),
        ("name='open", "a value is missing"),
        ("batches=1e999999999", "'1e999999999' is out of range"),
        ("batches=8,-1e-999999999", "'-1e-999999999' is out of range"),
        ("batches=[1e999999999]", "'1e999999999' is out of range"),
        ("batches=range(1e999999999)", "'1e999999999' is out of range"),
        (f"batches={'9' * 5000}", "is out of range"),
        (f"batches=1e{'9' * 5000}", "is out of range"),
        (f"batches={'[' * 500}1{']' * 500}", "nested too deeply"),
    ],
)
def test_what_is_wrong_is_shown(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        axis = parse(f"key={text}")
    except InputError:
        return
    assert axis.values
