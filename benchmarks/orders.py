"""Orders of microbatches that differ, over random steps of a trainer: 1F1B of 8 stages x 32.

Lengths of documents are lognormal, fitted to The Pile (2101.00027, table 1: raw size and mean
document size of its 22 parts). If all documents of a part were of its mean size, their geometric
mean, the median, would be 3.76 KiB. Their mean is 5.91 KiB, so sigma is 0.95. Within parts lengths
differ, too, and the true tail is heavier: `wide` has the same mean, and sigma 1.5 by assumption.
Also assumed: 4 bytes are a token; the context is 32,768 tokens, at which documents are cut.

- `single`: every microbatch is one document.
- `packed`, `wide`: every microbatch is filled with documents in the order in which they come.

The times of a microbatch grow with its tokens, and attention with the squares of its documents
(`ppopt.problem.sequence_lengths`). Attention is 0.38 of the times of a document of the whole
context: FLOPs of a layer of Llama 3.1 8B, 2 x 218M per token against 4 x 32768 / 2 x 4096.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from math import exp, log
from statistics import mean, median

import numpy as np

from benchmarks.record import heading, table
from ppopt import MicrobatchOrders, Pipeline, evaluate
from ppopt.problem.arrays import Ints
from ppopt.problem.objective import Objective
from ppopt.schedule.order_columns import OrderColumns

STAGES, BATCHES = 8, 32
CONTEXT, SHARE = 32768, 0.38
MEDIAN, MEAN = 3.76 * 256, 5.91 * 256
"""Of the documents, in tokens."""
SIGMA = (2 * log(MEAN / MEDIAN)) ** 0.5
WIDE = 1.5
LONG = 20_000
"""Orders that the long search times; the trainer's default is 1,000."""
PIPELINE = Pipeline(stages=STAGES, batches=BATCHES)


def documents(random: np.random.Generator, sigma: float) -> Iterator[int]:
    """Lengths of one document after another, in tokens."""
    while True:
        drawn = random.lognormal(log(MEAN) - sigma**2 / 2, sigma, 256)
        yield from np.clip(drawn.round(), 1, CONTEXT).astype(int).tolist()


def packed(lengths: Iterator[int]) -> list[int]:
    """A microbatch of the whole context; the last document is cut."""
    drawn = [next(lengths)]
    while sum(drawn) < CONTEXT:
        drawn.append(min(next(lengths), CONTEXT - sum(drawn)))
    return drawn


def steps(name: str, count: int, seed: int) -> Iterator[list[list[int]]]:
    """The lengths of the documents of every microbatch, of one step after another."""
    random = np.random.default_rng(seed)
    lengths = documents(random, WIDE if name == "wide" else SIGMA)
    for _ in range(count):
        yield [[next(lengths)] if name == "single" else packed(lengths) for _ in range(BATCHES)]


def rules(lengths: list[list[int]]) -> dict[str, Ints]:
    """The orders of a step that follow a rule."""
    tokens = np.array([sum(entry) for entry in lengths])
    squares = np.array([sum(length**2 for length in entry) for entry in lengths])
    largest = np.argsort(-squares, kind="stable")
    turns = np.stack([largest[: BATCHES // 2], largest[: BATCHES // 2 - 1 : -1]], axis=1).ravel()
    return {
        "as given": np.arange(BATCHES),
        "most tokens first": np.argsort(-tokens, kind="stable"),
        "largest squares first": largest,
        "smallest squares first": largest[::-1],
        "large and small by turns": turns,
        "largest in the middle": np.concatenate([largest[::-1][::2], largest[::2]]),
    }


def report(name: str, count: int, seed: int) -> Iterator[str]:
    """Losses of every rule, in per cent of the best order found for the step."""
    timing = OrderColumns.of_schedule(evaluate(PIPELINE, "1f1b"))
    orders_of = partial(MicrobatchOrders, PIPELINE, reference_tokens=CONTEXT, attention_share=SHARE)
    default, long = orders_of(), orders_of(evaluations=LONG)
    losses: dict[str, list[float]] = {}
    gaps, took, spread = [], [], []
    for lengths in steps(name, count, seed):
        factors = np.array([_factor(entry) for entry in lengths])
        orders = rules(lengths)
        placed = factors[np.array(list(orders.values())).T]
        values = timing.values_by_factors(placed, Objective.MAKESPAN)
        times = dict(zip(orders, (values / PIPELINE.ticks.per_unit).tolist(), strict=True))
        began = time.process_time()
        default_order = default.of_lengths(lengths)
        took.append(time.process_time() - began)
        best = long.of_lengths(lengths)
        times |= {"searched": default_order.makespan, f"searched, {LONG:,} orders": best.makespan}
        minimum = min(times.values())
        for rule, value in times.items():
            losses.setdefault(rule, []).append(value / minimum - 1)
        assert default_order.lower_bound is not None
        gaps.append(1 - default_order.lower_bound / default_order.makespan)
        spread.append(factors.std() / factors.mean())
    yield f"## {name}\n"
    yield f"Standard deviation of the factors of a step: {mean(spread):.0%} of their mean.\n"
    rows = ((rule, _cent(mean(loss)), _cent(max(loss))) for rule, loss in losses.items())
    yield from table(("order", "mean loss", "worst loss"), rows)
    yield (
        f"\nGap of the bound: mean {_cent(mean(gaps))}, largest {_cent(max(gaps))}. A search takes "
        f"{1000 * median(took):.0f} ms of the processor, median.\n"
    )


def _factor(entry: list[int]) -> float:
    squares = sum(length**2 for length in entry)
    return (1 - SHARE) * sum(entry) / CONTEXT + SHARE * squares / CONTEXT**2


def _cent(share: float) -> str:
    return f"{100 * share:.2f} %"


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="orders of microbatches over random steps")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(heading("Orders of microbatches", "numpy"))
    print(
        f"\n1F1B, {STAGES} stages x {BATCHES} microbatches, {args.steps} steps, seed {args.seed}."
    )
    print(f"Lognormal lengths: median {MEDIAN:.0f} and mean {MEAN:.0f} tokens, sigma {SIGMA:.2f};")
    print(f"`wide`: median {MEAN / exp(WIDE**2 / 2):.0f}, sigma {WIDE}.\n", flush=True)
    for name in ("single", "packed", "wide"):
        print("\n".join(report(name, args.steps, args.seed)), flush=True)


if __name__ == "__main__":
    main()
