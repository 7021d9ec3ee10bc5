"""The targets of the suite against what a record measured, as Markdown.

python -m benchmarks.targets benchmarks/records/DATE-core.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.attempt import Attempt, describe, read
from benchmarks.record import table

LARGEST_MEMORY = 4096.0
"""MiB."""
PUBLISHED = {
    "zb-1.5b-m24": ("0.1585", "0.0433"),
    "zb-1.5b-m32": ("0.1242", "0.0039"),
    "zb-1.5b-m64": ("0.0674", "0.0026"),
}
"""Bubble rates of ZB-1p and ZB-2p as printed (arXiv 2401.10241, table 5), at p and 2p."""


@dataclass(frozen=True)
class Target:
    """What a group must reach."""

    group: str
    share: float
    """Least share proved."""
    gap: float
    """Largest gap; 0: only proofs will do."""
    seconds: float | None = None
    """Median time, if one is asked for."""

    def wanted(self) -> str:
        """In words."""
        parts = [f"{self.share:.0%} proved"] if self.share else []
        parts += [f"gap at most {self.gap:.1%}"] if self.gap else []
        parts += [f"median below {self.seconds:g} s"] if self.seconds else []
        return ", ".join(parts)

    def met(self, attempts: Sequence[Attempt]) -> bool:
        """Whether the attempts of the group reach it."""
        return (
            _share(attempts) >= self.share
            and _gap(attempts) <= self.gap
            and (self.seconds is None or _median(attempts) < self.seconds)
            and max(attempt.peak_mib for attempt in attempts) <= LARGEST_MEMORY
        )


TARGETS = (
    Target("linear p=4", 1.0, 0.0, 1.0),
    Target("linear p=8", 1.0, 0.0, 1.0),
    Target("linear p=16", 0.98, 0.01, 1.0),
    Target("linear p=32", 0.95, 0.01),
    Target("linear below p p=4", 1.0, 0.0, 1.0),
    Target("linear below p p=8", 1.0, 0.0, 1.0),
    Target("linear below p p=16", 0.0, 0.02, 1.0),
    Target("linear below p p=32", 0.0, 0.02),
    Target("two chunks p=4", 1.0, 0.0),
    Target("two chunks p=8", 0.9, 0.02),
    Target("device span", 0.0, 0.005),
    Target("large", 0.0, 0.01),
)


def _share(attempts: Sequence[Attempt]) -> float:
    return sum(attempt.proved for attempt in attempts) / len(attempts)


def _gap(attempts: Sequence[Attempt]) -> float:
    """Largest gap; no schedule counts as a gap of 1."""
    return max(
        0.0 if attempt.proved else 1.0 if attempt.gap is None else attempt.gap
        for attempt in attempts
    )


def _median(attempts: Sequence[Attempt]) -> float:
    return median(attempt.seconds for attempt in attempts)


def report(path: Path) -> Iterator[str]:
    """The parts of the summary."""
    heads, attempts = read(path)
    first = attempts[0]
    yield "# Proofs over the suite\n"
    yield describe(heads)
    yield (
        f"- {len(attempts)} instances, at most {first.seconds_limit:g} s each, {first.workers} "
        f"workers, seed {first.seed}; every schedule verified\n"
    )
    yield from _table(attempts)
    yield from _listing("Worse than a strategy by hand that keeps the limit", attempts, _worse)
    yield from _published(attempts)
    yield from _listing("Not proved", attempts, lambda attempt: not attempt.proved)


def _table(attempts: Sequence[Attempt]) -> Iterator[str]:
    columns = ("group", "instances", "target", "proved", "share", "largest gap", "median s")
    groups = [
        (target, [attempt for attempt in attempts if attempt.group == target.group])
        for target in TARGETS
    ]
    rows = (_row(target, members) for target, members in groups if members)
    return table((*columns, "largest s", "peak MiB", "met"), rows)


def _row(target: Target, attempts: Sequence[Attempt]) -> tuple[object, ...]:
    proved, met = (
        sum(attempt.proved for attempt in attempts),
        "yes" if target.met(attempts) else "**no**",
    )
    shares = (f"{_share(attempts):.1%}", f"{_gap(attempts):.2%}", f"{_median(attempts):.2f}")
    maxima = (
        max(attempt.seconds for attempt in attempts),
        max(attempt.peak_mib for attempt in attempts),
    )
    return (
        target.group,
        len(attempts),
        target.wanted(),
        proved,
        *shares,
        f"{maxima[0]:.1f}",
        f"{maxima[1]:.0f}",
        met,
    )


def _worse(attempt: Attempt) -> bool:
    return attempt.baseline_value is not None and (
        attempt.value is None or attempt.value > attempt.baseline_value
    )


def _listing(
    title: str, attempts: Sequence[Attempt], chosen: Callable[[Attempt], bool]
) -> Iterator[str]:
    selected = [attempt for attempt in attempts if chosen(attempt)]
    yield f"\n## {title}: {len(selected)} of {len(attempts)}\n"
    if not selected:
        return
    columns = ("instance", "status", "value", "bound", "gap", "best by hand", "seconds")
    yield from table(columns, map(_cells, selected))


def _cells(attempt: Attempt) -> tuple[str, ...]:
    value, bound, baseline_value = (
        time_of(attempt, ticks) for ticks in (attempt.value, attempt.bound, attempt.baseline_value)
    )
    gap = "" if attempt.gap is None else f"{attempt.gap:.2%}"
    return (
        attempt.instance,
        attempt.status,
        value,
        bound,
        gap,
        f"{attempt.baseline} {baseline_value}",
        f"{attempt.seconds:.1f}",
    )


def time_of(attempt: Attempt, ticks: int | None) -> str:
    """Ticks in the user's unit; nothing for none."""
    return "" if ticks is None else f"{ticks / attempt.per_unit:.10g}"


def _published(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Rates of the pipelines whose published rates are known, and the published ones."""
    rows = [
        row for attempt in attempts if attempt.objective == "device-span" for row in _rates(attempt)
    ]
    if not rows:
        return
    yield "\n## Device span beside the published rates (arXiv 2401.10241, table 5)\n"
    yield from table(("instance", "our rate", "published", "not worse"), rows)


def _rates(attempt: Attempt) -> Iterator[tuple[str, ...]]:
    model, _, limit = attempt.instance.partition(" ")
    if model not in PUBLISHED or attempt.value is None:
        return
    rate, printed = 1 - attempt.busiest / attempt.value, PUBLISHED[model][limit == "2p"]
    holds = round(rate, 4) <= float(printed)
    yield attempt.instance, f"{rate:.4f}", printed, "yes" if holds else "**no**"


def main() -> None:
    """Print the summary of a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    for part in report(parser.parse_args().record):
        print(part)


if __name__ == "__main__":
    main()
