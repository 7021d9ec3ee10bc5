"""Errors by the class of a run, and runs that ran and are predicted to be over the memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.derived_measured.machines import gpu_of
from benchmarks.derived_measured.outcomes import GIB, Outcome, errors_of, percent
from benchmarks.record import table
from ppopt.derivation.derived_model import USABLE

LONG = 32768
"""Tokens of a sequence from which a context is long."""


class RunClass(NamedTuple):
    """Runs that have something in common, and the aim for the mean absolute error of their steps.

    Classes overlap.
    """

    name: str
    limit: float | None
    contains: Callable[[Outcome], bool]

    def row(self, outcomes: Sequence[Outcome]) -> list[object]:
        """The class as a row of a table."""
        members = [outcome for outcome in outcomes if outcome.error is not None]
        members = [outcome for outcome in members if self.contains(outcome)]
        errors = errors_of(outcome.error for outcome in members if outcome.error is not None)
        limit = "-" if self.limit is None else percent(self.limit)
        if errors is None:
            return [self.name, limit, 0, "-", "-", "-", "-", "-"]
        verdict = "-"
        if self.limit is not None:
            verdict = "pass" if errors.mean_absolute <= self.limit else "FAIL"
        over = sum(map(is_over_limit, members))
        figures = percent(errors.mean_absolute), percent(errors.median_absolute)
        signed = percent(errors.signed, sign=True)
        return [self.name, limit, len(members), *figures, signed, verdict, over]


def is_over_limit(outcome: Outcome) -> bool:
    """Whether the predicted peak of a run is above the limit that a plan would set on its GPU."""
    assert outcome.prediction is not None
    return max(outcome.prediction.memory) > USABLE * GIB * gpu_of(outcome.run).memory


def _is_small(outcome: Outcome) -> bool:
    run = outcome.run
    small = not (outcome.large or run.shards_weights) and run.precision == "bf16"
    return outcome.compared and small


def _is_fp8(outcome: Outcome) -> bool:
    return outcome.compared and outcome.run.precision == "fp8"


def _is_fsdp(outcome: Outcome) -> bool:
    return outcome.compared and outcome.run.shards_weights


CLASSES = (
    RunClass("BF16, large microbatches, no FSDP", 0.09, lambda outcome: outcome.aimed),
    RunClass("FSDP", 0.12, _is_fsdp),
    RunClass("FSDP in BF16", None, lambda o: _is_fsdp(o) and o.run.precision == "bf16"),
    RunClass("FP8, dense", 0.10, lambda o: _is_fp8(o) and not o.has_experts),
    RunClass("FP8, experts", None, lambda o: _is_fp8(o) and o.has_experts),
    RunClass(
        "experts on H100",
        0.15,
        lambda o: o.compared and o.has_experts and "H100" in o.run.hardware.upper(),
    ),
    RunClass(f"{LONG} tokens or more", None, lambda o: o.compared and o.run.sequence >= LONG),
    RunClass("BF16, small microbatches, no FSDP", 0.25, _is_small),
    RunClass("all that are compared", None, lambda outcome: outcome.compared),
)


def class_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Every class: errors of steps, and runs that are predicted to be over the memory limit."""
    columns = ("class", "limit", "rows", "mean", "median", "signed", "verdict", "over memory")
    yield from table(columns, (each.row(outcomes) for each in CLASSES))
