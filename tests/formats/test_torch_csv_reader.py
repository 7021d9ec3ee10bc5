"""Orders of PyTorch's runtime read back: what is taken, and everything that is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppopt import Pipeline, evaluate, verify
from ppopt.errors import DeadlockError, InputError
from ppopt.formats import torch_csv
from ppopt.formats.loader_order import microbatch_numbers
from ppopt.formats.torch_csv import Order, parse_order, read_order, schedule
from ppopt.problem.operation import parse
from ppopt.schedule.orders import codes
from ppopt.schedule.schedule import Schedule
from tests.clock import EVENTS, work_clock
from tests.factories.schedules import SAYABLE, schedules
from tests.tiers import examples

FULL = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
"""1F1B of 2 x 2."""
SPLIT = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
"""ZB-H1 of 2 x 2."""
V = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"


def read(text: str) -> Order:
    return parse_order(text, "a.csv")


def rows(text: str) -> list[list[str]]:
    return [[str(action) for cell in row for action in cell] for row in read(text).rows]


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        schedule(read(text), {})
    return str(caught.value)


def outcome(text: str) -> str:
    """What becomes of a text; anything but a verified order or a refusal in one line is neither."""
    try:
        timed = schedule(read(text), {})
    except InputError as error:
        return "refused" if str(error).isprintable() else "unprintable"
    return "order" if verify(timed) == [] else "broken"


class TestRead:
    def test_letters(self) -> None:
        order = read(SPLIT)
        assert rows(SPLIT)[1] == ["1F0", "1B0", "1F1", "1B1", "1W0", "1W1"]
        assert rows(FULL)[0] == ["0F0", "0F1", "0BW0", "0BW1"]
        assert (order.placement, order.batches) == ((0, 1), 2)

    @pytest.mark.parametrize(
        "text",
        [
            FULL.replace("\n", "\r\n"),
            FULL.removesuffix("\n"),
            FULL.replace("1F0", ",, 1F0 ,"),
            FULL.replace("1B1", "1B1,,,"),
        ],
        ids=["crlf", "no last line end", "blanks and empty cells", "idle at the end"],
    )
    def test_spelling(self, text: str) -> None:
        assert read(text) == read(FULL)

    def test_communication_is_left_out(self) -> None:
        text = (
            "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
        )
        assert read(text) == read(FULL)

    def test_an_overlap_is_a_pair(self) -> None:
        """On rank 1 of 1F1B, B of microbatch 0 paired with F of 1: from 2 to 5 at unit costs."""
        text = FULL.replace("1B0,1F1", "( 1F1; 1B0 )OVERLAP_F_B")
        order = read(text)
        assert [list(map(str, cell)) for cell in order.rows[1]] == [
            ["1F0"],
            ["1F1", "1BW0"],
            ["1BW1"],
        ]
        timed = schedule(order, {})
        assert verify(timed) == []
        times = [(str(row.op), row.start, row.end) for row in timed.rows() if row.pair >= 0]
        assert times == [("1F1", 2, 5), ("1BW0", 2, 5)]
        assert torch_csv.order_csv(timed) == text.replace(" ", "")

    def test_the_older_dialect(self) -> None:
        """A B that a W follows, and no I, is today's I; a B alone stays a full backward."""
        old = SPLIT.replace("I", "B")
        assert read(old) == read(SPLIT)
        mixed = FULL.replace("0B0", "0B0,0W0")
        assert rows(mixed)[0] == ["0F0", "0F1", "0B0", "0W0", "0BW1"]

    def test_pytorchs_numbers_of_the_last_stage(self) -> None:
        """Its 1F1B numbers the forwards of the last stage from 1, and nothing else."""
        right = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
        shifted = right.replace("1F1", "1F2").replace("1F0", "1F1")
        assert read(shifted) == read(right)
        with pytest.raises(InputError):
            read(right.replace("0F1", "0F2").replace("0F0", "0F1"))

    def test_backwards_in_reverse(self) -> None:
        """PyTorch's LoopedBFS runs them so."""
        assert rows("0F0,0F1,0B1,0B0\n") == [["0F0", "0F1", "0BW1", "0BW0"]]

    def test_placement_is_that_of_the_rows(self) -> None:
        assert read(V).placement == (0, 1, 1, 0)
        assert read("2F0,2B0\n0F0,1F0,1B0,0B0\n").placement == (1, 1, 0)


BAD = {
    "nothing": ("", "rank 0: the line is blank"),
    "blank last line": (FULL + "\n", "rank 2: the line is blank"),
    "idle rank": (FULL + ",,\n", "rank 2: runs nothing"),
    "header": ("rank 0\n" + FULL, "rank 0: cell 0: 'rank 0' is no operation"),
    "byte order mark": ("\ufeff" + FULL, "rank 0: cell 0: '\\ufeff0F0' is no operation"),
    "None": (FULL.replace("0F1", "None,0F1"), "rank 0: cell 1: 'None' is no operation"),
    "quotes": (FULL.replace("0F1", '"0F1"'), "'\"0F1\"' is no operation"),
    "something after": (FULL.replace("0F0", "0F0xyz"), "cell 0: '0F0xyz' is no operation"),
    "decimals": (FULL.replace("0F1", "0F1.5"), "'0F1.5' is no operation"),
    "leading zero": (FULL.replace("0F1", "0F01"), "'0F01' is no operation"),
    "other digits": (FULL.replace("0F1", "0F\u0661"), "is no operation"),
    "negative": (FULL.replace("0F1", "0F-1"), "'0F-1' is no operation"),
    "no microbatch": (FULL.replace("0F1", "0F"), "'0F' is no operation"),
    "our own letters": ("0F0,0BW0\n", "'0BW0' is no operation"),
    "huge number": (FULL.replace("0F1", "0F" + "9" * 5000), "is no operation"),
    "large number": (FULL.replace("F1", "F99999999"), "microbatch 2 is missing"),
    "twice": (FULL.replace("0F1", "0F1,0F1"), "0F1 is given 2 times (rank 0); keep one"),
    "twice, on two ranks": (FULL.replace("1F0", "1F0,0F0"), "0F0 is given 2 times (rank 0, 1)"),
    "forwards only": ("0F0,0F1\n1F0,1F1\n", "stage 0 runs F for microbatch 0; each needs"),
    "no forward": (FULL.replace("0F1,", ""), "stage 0 runs B for microbatch 1"),
    "I without W": (SPLIT.replace(",0W0", ""), "stage 0 runs F I for microbatch 0"),
    "I and B": (FULL.replace("0B0", "0I0,0B0"), "stage 0 runs F I B for microbatch 0"),
    "overlap of one microbatch": ("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n", "cannot run as one; pair an F"),
    "all three": (FULL.replace("0B0", "0I0,0W0,0B0"), "stage 0 runs F I W B for microbatch 0"),
    "counts differ": (FULL + "2F0,2B0\n", "stage 2 runs nothing for microbatch 1"),
    "microbatches from 1": (FULL.translate({48: "1", 49: "2"}), "stage 0 is missing"),
    "microbatch 0 missing": ("0F1,0B1\n", "microbatch 0 is missing; number every microbatch"),
    "stage missing": ("0F0,0B0\n2F0,2B0\n", "stage 1 is missing; number every stage from 0"),
    "two ranks": ("0F0,0F1,0B0\n0B1\n", "rank 1: 0B1: stage 0 is on rank 0 too"),
    "losses": ("0F1,0F0,0B0,0B1\n", "the last stage runs 0F1 as forward number 0"),
    "overlap of one": ("0F0,(0B0)OVERLAP_F_B\n", "'(0B0)OVERLAP_F_B' is no operation"),
    "overlap of three": ("(0F0;0I0;0W0)OVERLAP_F_B\n", "is no operation"),
    "overlap, turned round": ("(0B0;0F0)OVERLAP_F_B\n", "an overlap is of a forward and then"),
    "overlap of forwards": ("(0F0;0F1)OVERLAP_F_B\n", "an overlap is of a forward and then"),
    "unknown action": ("0F0,0SYNC\n", "'0SYNC' is no operation"),
    "backward first": ("0B0,0F0\n", "the order deadlocks: 0F0 -> 0B0 -> 0F0"),
    "W before I": ("0F0,0W0,0I0\n", "the order deadlocks: 0I0 -> 0W0 -> 0I0"),
    "two ranks wait": (FULL.replace("1F0,1B0,1F1", "1F0,1F1,1B0").replace("0F1,0B0", "0B0,0F1"),
                       "the order deadlocks: "),
}  # fmt: skip


class TestRefused:
    @pytest.mark.parametrize("name", BAD)
    def test_defects(self, name: str) -> None:
        text, reason = BAD[name]
        message = refused(text)
        assert reason in message
        assert message.isprintable()
        assert len(message) < 400

    def test_more_ranks_than_there_are_devices(self) -> None:
        """A short line, where each rank with the same operation used to be listed."""
        assert refused("0F0\n" * 10**6) == (
            "a.csv: 1000000 ranks are above 1024; give every rank one line"
        )

    def test_the_ranks_of_a_repeated_operation_are_listed_to_a_limit(self) -> None:
        assert len(refused("0F0\n" * 1000)) < 120

    def test_very_many_cells(self) -> None:
        text = ",".join(["0F0"] * 10**7)
        with work_clock() as clock:
            assert "10000000 cells are above" in refused(text)
        assert clock.monotonic() * EVENTS < 10**5, "calls, fewer than cells"

    def test_a_circle_names_its_operations(self) -> None:
        with pytest.raises(DeadlockError) as caught:
            schedule(read("0B0,0F0\n"), {})
        assert set(caught.value.cycle) == {parse("0F0"), parse("0BW0")}

    def test_a_byte_order_mark_in_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"\xef\xbb\xbf" + FULL.encode())
        with pytest.raises(InputError, match=r"a\.csv: rank 0: cell 0: "):
            read_order(path)

    @settings(deadline=None)
    @given(st.text(st.sampled_from("0123FIWB,\n ();OVERLAP_.x\r\t\x00é"), max_size=40))
    @example("0F0,0B0")
    def test_any_text_is_an_order_or_one_line(self, text: str) -> None:
        """Whatever is taken is verified; the rest is refused in one line."""
        assert outcome(text) in ("order", "refused")

    @settings(deadline=None)
    @given(st.integers(0, 2**32))
    def test_a_damaged_file_is_an_order_or_one_line(self, seed: int) -> None:
        random = Random(seed)
        cells = [line.split(",") for line in SPLIT.splitlines()]
        for _ in range(random.randint(1, 3)):
            row = random.choice(cells)
            column = random.randrange(len(row))
            row[column] = random.choice((*cells[0], *cells[1], "", "1F2", "0B0"))
        assert outcome("\n".join(map(",".join, cells))) in ("order", "refused")


class TestPipeline:
    def test_defaults(self) -> None:
        """1F1B of 2 x 2 by hand: F0 0-1, B0 1-3 on rank 1, 0B0 4-6 after it, 0B1 7-9."""
        timed = schedule(read(FULL), {})
        assert timed.pipeline == Pipeline(stages=2, batches=2)
        assert timed.metrics.makespan_ticks == 9

    def test_names(self) -> None:
        """V gets its name back, so that costs are those of a device's share, cut in two."""
        timed = schedule(read(V), {"forward": [2, 4]})
        assert timed.pipeline == Pipeline(
            stages=2, batches=1, placement="v", chunks=2, forward=[2, 4]
        )
        assert timed.pipeline.ticks.durations[0] == (1, 2, 2, 1)

    def test_costs_per_stage(self) -> None:
        timed = schedule(read(V), {"forward": [2, 4, 1, 3]})
        assert timed.pipeline.placement == (0, 1, 1, 0)
        assert timed.pipeline.ticks.durations[0] == (2, 4, 1, 3)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"batches": 4}, "the order has 2 microbatches, the pipeline 4; give --batches 2"),
            ({"stages": 4}, "the order puts its stages on the ranks 0,1, the pipeline on 0,1,2,3"),
            ({"placement": [1, 0]}, "the ranks 0,1, the pipeline on 1,0; give a pipeline of"),
            ({"chunks": 2, "stages": 2}, "the pipeline on 0,1,0,1"),
            ({"routes": 2}, "the pipeline on 0,1 and 1,0"),
            ({"forward": [1, 2, 3]}, "forward: has 3 entries for 2 stages"),
        ],
    )
    def test_another_pipeline(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises(InputError) as caught:
            schedule(read(FULL), fields)
        assert message in str(caught.value)


@examples(15)
@given(schedules(SAYABLE, paired=False))
def test_round_trip(written: Schedule) -> None:
    """Written and read: the same order but for the numbers; timed at unit costs and written
    again: the same text."""
    text = torch_csv.order_csv(written)
    order = read(text)
    assert order.placement == written.pipeline.hosts[0]
    numbers = microbatch_numbers(written)
    for row, listed in zip(order.rows, map(codes, written.orders), strict=True):
        own = [written.pipeline.op(code) for code in listed]
        renumbered = [op._replace(microbatch=numbers[op.microbatch]) for op in own]
        assert [str(action) for (action,) in row] == list(map(str, renumbered))
    assert torch_csv.order_csv(schedule(order, {})) == text


@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p"])
def test_strategies_come_back_equal(strategy: str) -> None:
    """The same operations at the same ticks, from the order and the costs alone."""
    expected = evaluate(Pipeline(stages=4, batches=7, forward=3, backward=7, p2p="0.5"), strategy)
    costs = {"forward": 3, "backward": 7, "p2p": "0.5"}
    restored = schedule(read(torch_csv.order_csv(expected)), costs)
    assert restored.pipeline.ticks == expected.pipeline.ticks
    assert all(map(np.array_equal, restored.operations.columns, expected.operations.columns))


def test_interleaved_comes_back_equal() -> None:
    expected = evaluate(Pipeline(stages=4, batches=8), "interleaved")
    assert schedule(read(torch_csv.order_csv(expected)), {}) == expected
