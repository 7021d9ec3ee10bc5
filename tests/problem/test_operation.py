import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.problem.operation import Op, OpKind, parse


@given(st.sampled_from(OpKind), st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_written_is_read(kind: OpKind, stage: int, microbatch: int) -> None:
    op = Op(kind, stage, microbatch)
    assert parse(str(op)) == op


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F0",
        "0F",
        "0X0",
        "0F0xyz",
        "0F1.5",
        "0F1s0",
        "0F1s",
        " 0F0",
        "0F0\n",
        "00F0",
        "0F-1",
        "\N{ARABIC-INDIC DIGIT ZERO}F0",
        "0f0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not an operation"):
        parse(text)


@given(st.sampled_from(OpKind), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_slices_are_written_behind(kind: OpKind, stage: int, microbatch: int, part: int) -> None:
    op = Op(kind, stage, microbatch, part)
    assert parse(str(op)) == op
    assert str(op) == f"{stage}{kind.name}{microbatch}" + (f"s{part}" if part else "")
