"""The outcome of a search as text: status, gap, gain over baselines, hints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_CEILING
from typing import TYPE_CHECKING

from ppopt.formats.figures import ScheduleFigures
from ppopt.problem.placement import DEFAULT_CHUNKS
from ppopt.report.comparison_report import ComparisonReport
from ppopt.report.labels import objective_name, title
from ppopt.report.numbers import measured, percent, significant
from ppopt.report.placement_text import (
    describe_layers,
    describe_partition,
    describe_placing,
    describe_unsearched,
    placement_of,
)
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.throughput_text import gain_text, throughput_gain
from ppopt.schedule.operations import ALONE
from ppopt.schedule.origin import SEARCHED, HintRecord
from ppopt.schedule.schedule import Schedule

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.studies.baselines import Baseline
    from ppopt.studies.robustness import Jitter

STOPPED = "stopped early"
"""Said of a search that Ctrl-C or a request to end has ended."""
STEP_WORK = "unshard, gradient sync and optimizer"
UNCHECKED = "(not re-checked; `ppopt verify FILE --bound` checks it)"


def describe_throughput(report: ScheduleReport) -> str:
    """Tokens per second, per device, and MFU, as far as known; empty if nothing is."""
    parts = []
    if report.tokens_per_second is not None:
        parts.append(significant(report.tokens_per_second) + " tokens/s" + tokens_basis(report))
    if report.mfu is not None:
        check = "; check the FLOPs and the unit of time" if report.mfu > 1 else ""
        parts.append(f"MFU {percent(report.mfu)}{check}")
    return ", ".join(parts)


def tokens_basis(report: ScheduleReport, write: Callable[[float | None], str] = significant) -> str:
    """What tokens per second count, behind their unit: `, 248 per device`.

    They are those of one pipeline: with data parallelism, of one replica.
    """
    each = report.tokens_per_second_per_device
    training = None if report.pipeline is None else report.pipeline.training
    if each is None or training is None or training.data == 1:
        return f", {write(each)} per device"
    return f" per replica, {write(each / training.gpus_per_device)} per GPU"


def describe_exposed(report: ScheduleReport) -> str:
    """How much longer a step is for its work around the microbatches; empty if it has none."""
    if report.exposed is None:
        return ""
    time = significant(report.exposed, report.time_unit)
    return f"{time} of the {objective_name(report.objective)}, for {STEP_WORK}"


def describe_imbalance(report: ScheduleReport) -> str:
    """What of the bubble is imbalance, in percentage points; empty if all devices work alike."""
    imbalance = report.imbalance
    if imbalance is None or not imbalance.idle_share:
        return ""
    stages = imbalance.stages
    busiest = f"stage {stages[0]}" if len(stages) == 1 else f"device {imbalance.device}"
    points = percent(imbalance.idle_share).removesuffix(" %")
    ratio = f"{imbalance.times_mean:.3g}x the mean work"
    text = f"{points} points of it from imbalance ({busiest} has {ratio})"
    if imbalance.relief is None:
        return text
    return f"{text}; with a balanced partition, this order has {gain_text(imbalance.relief.gain)}"


def describe_status(report: ScheduleReport) -> str:
    """What a search claims; empty for a baseline, which claims nothing.

    An unchecked claim of a file is marked as such.
    """
    status = report.status
    if status is None or (status == "feasible" and report.lower_bound is None):
        return ""
    text = status
    if status == "unknown":
        text = "unknown: no schedule was found within the time limit"
    elif status == "feasible":
        text = f"feasible, {describe_gap(report)}"
    elif status in ("optimal", "infeasible") and report.checked:
        text = f"{status} (proved)"
    if report.stopped_early:
        text = f"{text}, {STOPPED}"
    return text if report.checked else f"the file says: {text} {UNCHECKED}"


def describe_gap(report: ScheduleReport) -> str:
    """The gap of a schedule, rounded up."""
    if report.gap is None or report.gap >= 1:
        return "no useful lower bound"
    return f"gap {percent(report.gap, ROUND_CEILING)}"


def describe_search(report: ScheduleReport, rows: Iterable[ScheduleReport] = ()) -> str:
    """The outcome of a search of one placement: `v/2: optimal (proved)`.

    `rows` are schedules it is compared with: where one of them has other routes, those of the
    search are named.
    """
    where = placement_of(report)
    if any((row.routes or 1) > 1 for row in rows) and report.routes == 1:
        where += ", one route"
    if report.value is None:
        return f"{where}: {describe_status(report)}; {report.proof}"
    return f"{where}: {describe_status(report)}"


def describe_best(rows: Sequence[ScheduleReport]) -> list[str]:
    """The best row, if it is a baseline of a placement that no search covers.

    `rows` are those of a comparison, the best first. Names the flag that searches the placement,
    if there is one.
    """
    best = next((row for row in rows if row.fits_limit), None)
    if best is None or best.ratio_to_optimum is not None or best.strategy == SEARCHED:
        return []
    searched = [row for row in rows if row.strategy == SEARCHED]
    where = placement_of(best)
    if not searched or where in map(placement_of, searched):
        return []
    value = significant(best.value, best.time_unit)
    names = [row.placement for row in (*searched, best)]
    rest = "this placement is not searched"
    is_default = DEFAULT_CHUNKS.get(str(best.placement)) == best.chunks and best.routes == 1
    if is_default and all(isinstance(name, str) for name in names):
        rest = f"--placement {','.join(map(str, names))} searches this placement, too"
    return [f"best of all: {title(best)}, {where}, {value}; {rest}"]


def describe_hint(report: ScheduleReport) -> str:
    """The gain over the schedule that a search started from; empty without one."""
    hint = report.hint
    if hint is None:
        return ""
    peak = significant(max(hint.peak_memory), report.memory_unit)
    over = "" if hint.fits_limit else f", but with peak memory {peak}"
    parts = [significant(hint.value, report.time_unit) + over, _gain(hint, report), *hint.notes]
    return "; ".join(part for part in parts if part)


def _gain(hint: HintRecord, report: ScheduleReport) -> str:
    if hint.gain is None:
        return ""
    if hint.gain:
        return f"this schedule has {gain_text(hint.gain)}"
    return "no schedule is better" if report.status == "optimal" else "nothing better was found"


def describe_lowering(report: ScheduleReport) -> str:
    """What a file of operations alone loses where links are streams; empty if it loses nothing."""
    lowering, unit = report.operations_alone, report.time_unit
    if lowering is None or not lowering.loss:
        return ""
    times = f"{measured(lowering.lowered, unit)} instead of {measured(lowering.own, unit)}"
    return (
        f"exported as torch-csv (PyTorch orders the transfers): {times}; `ppopt export --to "
        "torch-comms` keeps the order"
    )


def describe_jitter(report: ScheduleReport) -> str:
    """The effect of random times on an order; empty if there are none."""
    jitter = report.jitter
    if jitter is None:
        return ""
    mean, p95 = (significant(time, report.time_unit) for time in (jitter.mean, jitter.p95))
    return (
        f"mean {mean} ({_mean_gain(jitter)}), 95 % below {p95}; "
        f"{jitter.samples} samples of {percent(jitter.deviation)} deviation, seed {jitter.seed}"
    )


def describe_robustness(comparison: ComparisonReport) -> list[str]:
    """The strategy that degrades least, and whether the best is fragile: a sentence each.

    Empty without random times.
    """
    steadiest = comparison.steadiest
    if steadiest is None or steadiest.jitter is None:
        return []
    times = steadiest.jitter
    lines = [
        f"degrades least: {steadiest.strategy}, with {_mean_gain(times)} on average "
        f"({times.samples} samples, seed {times.seed})"
    ]
    if comparison.fragile is not None:
        best, rival = comparison.fragile
        lines.append(
            f"fragile: {title(best)} is best on paper, but takes {_mean(best)} on average, and "
            f"{title(rival)} {_mean(rival)}"
        )
    return lines


def _mean_gain(times: Jitter) -> str:
    return gain_text(throughput_gain(times.nominal, times.mean))


def _mean(row: ScheduleReport) -> str:
    return "" if row.jitter is None else significant(row.jitter.mean, row.time_unit)


def describe_gain(report: ScheduleReport) -> str:
    """What a search gains over the best baseline of its placement; empty without one."""
    baseline = report.baseline
    if baseline is None or baseline.speedup is None:
        return ""
    name, speedup = baseline.strategy, baseline.speedup
    if speedup < 1:
        # an optimum is worse only if the strategy runs backwards of a kind that was not searched
        cure = "use --backward mixed" if report.status == "optimal" else "raise --time-limit"
        return f"{gain_text(speedup - 1)} than {name}; {cure}"
    value = significant(baseline.value, report.time_unit)
    best = f"the best baseline of this placement{' that fits' * (report.mem_limit is not None)}"
    if baseline.chosen:
        best += f", each with its own {' and '.join(baseline.chosen)}"
    if baseline.skipped:
        best += f" ({', '.join(baseline.skipped)} not evaluated: time limit reached)"
    than = "as" if speedup == 1 else "than"
    return f"{gain_text(speedup - 1)} {than} {name} ({value}), {best}"


def describe_baseline(report: ScheduleReport) -> str:
    """The best baseline of the placement, with its exact value and its own partition."""
    baseline = report.baseline
    if baseline is None:
        return ""
    value = measured(baseline.value, report.time_unit)
    return f"{baseline.strategy}, {value}{_own_cut(baseline) if baseline.chosen else ''}"


def _own_cut(baseline: Baseline) -> str:
    """Partition, recompute and offload of a strategy, in brackets; empty without layers."""
    cut = ScheduleFigures.of(None, baseline.pipeline)
    if not cut.partition:
        return ""
    layers = {
        "recompute": describe_layers(cut.recompute, cut.recomputed_layers),
        "offload": describe_layers(cut.offload, cut.offloaded_layers),
    }
    parts = (f"{name} {text}" for name, text in layers.items() if text)
    return f" ({'; '.join([describe_partition(cut.partition, cut.layout), *parts])})"


def note_overlaps(schedules: Iterable[Schedule]) -> list[str]:
    """A note on overlapped pairs that save no time for lack of overlap times; empty if none do."""
    names = [
        str(schedule.origin.strategy)
        for schedule in schedules
        if schedule.pipeline.overlap is None and (schedule.pair != ALONE).any()
    ]
    if not names:
        return []
    return [
        f"{', '.join(names)}: an overlapped pair takes the sum of its F and its backward, unless "
        "--overlap-times says how long it takes"
    ]


def describe_other_placement(report: ScheduleReport) -> str:
    """A better baseline of another placement; empty if there is none."""
    baseline = report.elsewhere
    if baseline is None:
        return ""
    speedup = baseline.speedup
    name = f"{baseline.strategy} ({describe_placing(baseline.pipeline)})"
    if speedup is None:
        value = measured(baseline.value, report.time_unit)
        return f"{name} has {objective_name(report.objective)} {value}"
    if speedup > 1:
        return f"{name} is a better baseline; this schedule has {gain_text(speedup - 1)}"
    more = f"{gain_text(1 / speedup - 1)} {'than' if speedup < 1 else 'as'}"
    return f"{name} has {more} this schedule; {_placing_flags(baseline, report)} searches there"


def describe_next_step(report: ScheduleReport, pipeline: Pipeline) -> str:
    """What to search next: where a baseline is faster, or what the search of a pipeline left out.

    A search without a schedule has its next step in its status or its reason.
    """
    if report.schedule is None:
        return ""
    elsewhere = report.elsewhere
    if elsewhere is not None and elsewhere.speedup is not None and elsewhere.speedup < 1:
        gain = gain_text(1 / elsewhere.speedup - 1)
        return (
            f"faster elsewhere: {elsewhere.strategy}, {gain}; to search there: "
            f"{_placing_flags(elsewhere, report)}"
        )
    return describe_unsearched(pipeline)


def _placing_flags(baseline: Baseline, report: ScheduleReport) -> str:
    """The flags that change the placement of a search to that of a baseline."""
    placement, chunks = baseline.pipeline.resolved_placement, baseline.pipeline.num_chunks
    flags = [f"--placement {placement}"] if placement != report.placement else []
    flags += [f"--chunks {chunks}"] if chunks != report.chunks else []
    return " ".join([*flags, "--routes 2"] if baseline.pipeline.routes > 1 else flags)
