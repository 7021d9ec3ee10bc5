"""Constants that are fitted on measured steps: the error of their rows by the value.

A fit changes one constant and predicts its rows for every value. The value with the smallest mean
absolute error is the best; the table says how far from it the value in use is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.derived_measured.machines import gpu_of
from benchmarks.derived_measured.outcomes import Outcome, errors_of, outcome_of, percent
from benchmarks.derived_measured.predict import predicted, setup_of
from benchmarks.derived_measured.runs import LLM_FOUNDRY, MEGATRON_CI, Run
from benchmarks.record import table
from ppopt.derivation.gpus import Gpu

SHORT, LONG = 2048, 8192
"""Tokens of sequences up to which products dominate a step, and from which attention counts."""


class Fit(NamedTuple):
    """A constant of GPUs, and the runs that it is fitted on."""

    name: str
    rows: Callable[[Run], bool]
    read: Callable[[Gpu], float]
    write: Callable[[Gpu, float], Gpu]
    values: Sequence[float]

    def table_row(self, runs: Sequence[Run]) -> list[object]:
        """The constant as a row of a table."""
        outcomes = [outcome_of(run) for run in runs if self.rows(run)]
        rows = [outcome for outcome in outcomes if outcome.compared]
        if not rows:
            return [self.name, 0, "-", "-", "-", "-", "-"]
        used = self.read(gpu_of(rows[0].run))
        errors = {
            value: errors
            for value in {*self.values, used}
            if (errors := errors_of(self._errors(rows, value))) is not None
        }
        best = min(errors, key=lambda value: errors[value].mean_absolute)
        figures = [
            text
            for value in (used, best)
            for text in (
                f"{value:.4g}",
                percent(errors[value].mean_absolute),
                percent(errors[value].signed, sign=True),
            )
        ]
        return [self.name, len(rows), *figures]

    def _errors(self, rows: Sequence[Outcome], value: float) -> Iterator[float]:
        for outcome in rows:
            assert outcome.measured is not None
            setup = setup_of(outcome.run)
            changed = replace(setup, gpu=self.write(setup.gpu, value))
            yield predicted(changed).step / outcome.measured - 1


def _foundry(gpu: str, minimum: int, maximum: int) -> Callable[[Run], bool]:
    """Runs of llm-foundry in BF16 with so many tokens a sequence."""

    def belongs(run: Run) -> bool:
        return (
            run.source == LLM_FOUNDRY
            and run.hardware.startswith(gpu)
            and run.precision == "bf16"
            and minimum <= run.sequence <= maximum
        )

    return belongs


def _small_model(gpu: str) -> Callable[[Run], bool]:
    """Small models of Megatron-LM's tests."""
    return lambda run: (
        run.source.startswith(MEGATRON_CI) and "small" in run.source and run.hardware == gpu
    )


def _dense_fp8(gpu: str) -> Callable[[Run], bool]:
    """Llama in FP8 of Megatron-Bridge."""
    return lambda run: (
        run.source.startswith("Megatron-Bridge perf")
        and run.precision == "fp8"
        and run.model.lower().startswith("llama")
        and run.hardware == f"DGX-{gpu}"
    )


def _fa2(gpu: Gpu, value: float) -> Gpu:
    return replace(gpu, attention_kernels={**gpu.attention_kernels, "fa2": value})


FITS = (
    Fit(
        "h100, matrix_efficiency",
        _foundry("h100", 0, SHORT),
        lambda gpu: gpu.matrix_efficiency,
        lambda gpu, value: replace(gpu, matrix_efficiency=value),
        [0.58 + 0.01 * step for step in range(20)],
    ),
    *(
        Fit(
            f"{gpu}, attention_kernels of fa2",
            _foundry(gpu, LONG, 2**31),
            lambda gpu: gpu.attention_kernels["fa2"],
            _fa2,
            [1 + 0.05 * step for step in range(50)],
        )
        for gpu in ("a100", "h100")
    ),
    *(
        Fit(
            f"{gpu}, matrix_efficiency in FP8",
            _dense_fp8(gpu.upper()),
            lambda gpu: gpu.matrix_efficiency,
            lambda gpu, value: replace(gpu, matrix_efficiency=value),
            [0.44 + 0.02 * step for step in range(16)],
        )
        for gpu in ("h100", "b200", "gb200", "gb300")
    ),
    *(
        Fit(
            f"{gpu}, launch_time",
            _small_model(gpu.upper()),
            lambda gpu: gpu.launch_time,
            lambda gpu, value: replace(gpu, launch_time=value),
            [0.7 + 0.1 * step for step in range(14)],
        )
        for gpu in ("h100", "a100", "gb200")
    ),
)


def fit_table(runs: Sequence[Run], name: str) -> Iterator[str]:
    """Constants by a part of their names, or `all`: the value in use and the best, with errors."""
    columns = ("constant", "rows", "in use", "mean", "signed", "best", "mean", "signed")
    yield from table(
        columns,
        (fit.table_row(runs) for fit in FITS if name in (fit.name, "all") or name in fit.name),
    )
