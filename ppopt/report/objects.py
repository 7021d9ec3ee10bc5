"""The objects that commands print with --json.

They hold schedules as they are. Only a writer of JSON turns them into their native form
(`ppopt.formats.schedule_json.schedule_to_object`): that takes long, and tables do not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from ppopt.formats import origin_json
from ppopt.formats.figures import limits, placed, unit_names
from ppopt.problem.exact import plain, plain_or_none
from ppopt.report.summary import summary
from ppopt.schedule.communication import Loss
from ppopt.schedule.idle import by_cause
from ppopt.schedule.schedule import Schedule
from ppopt.solver.options import versions
from ppopt.solver.result import Result
from ppopt.studies.baselines import Baseline, best
from ppopt.verifier import Rule, Violation
from ppopt.verifier.measured import is_measured

if TYPE_CHECKING:
    from ppopt.rechecker import Recheck
    from ppopt.studies.best_choice import StrategyChoice
    from ppopt.studies.compare import Comparison, ComparisonRow
    from ppopt.studies.frontier import Frontier, FrontierHand
    from ppopt.studies.robustness import Jitter

SCHEMA = 1
_SEARCHED = ("status", "objective", "value", "lower_bound", "gap", "proof")
FIGURES = (
    *("makespan", "device_span", "bubble_rate", "bubble_overhead", "peak_memory", "mem_limit"),
    *("exposed", "time_unit", "memory_unit"),
    *("tokens_per_second", "tokens_per_second_per_device", "mfu"),
)


def of_result(result: Result, hand: Baseline | None) -> dict[str, Any]:
    """Object of `ppopt solve`; figures are None if there is no schedule.

    `hand` is the best hand strategy of the placement within the limit, None if there is none.

    `hint` exists where a search starts from a schedule: its value, the share by which the schedule
    found is better (`gain`), its peak memory, whether that fits the limit, and what was changed to
    start from it.
    """
    origin = origin_json.origin_to_object(result.origin())
    found = {} if result.schedule is None else summary(result.schedule)
    shown = {key: found.get(key) for key in FIGURES}
    shown |= {"mem_limit": limits(result.pipeline), **unit_names(result.pipeline)}
    return {
        "schema": SCHEMA,
        **{key: origin.get(key) for key in _SEARCHED},
        **shown,
        "idle": None if result.schedule is None else by_cause(result.schedule),
        "backward_kind": result.backward_kind.value,
        "imbalance": found.get("imbalance"),
        "baseline": _baseline(hand),
        **placed(result.pipeline),
        "routes": result.pipeline.routes,
        **{key: origin[key] for key in ("seed", "workers", "versions", "hint") if key in origin},
        "solve_seconds": round(result.solve_seconds, 3),
        **_native(result.schedule),
    }


def _baseline(hand: Baseline | None) -> dict[str, Any] | None:
    if hand is None:
        return None
    cut = placed(hand.pipeline)
    return {
        "strategy": hand.strategy,
        "value": plain(hand.value),
        "speedup": plain_or_none(hand.speedup),
        "skipped": list(hand.skipped),
        "chosen": list(hand.chosen),
        **{key: cut[key] for key in ("partition", "layout", "recompute", "recomputed_layers")},
        **{key: cut[key] for key in ("offload", "offloaded_layers")},
    }


def of_other_placement(other: Baseline | None) -> dict[str, Any] | None:
    """The key `elsewhere` of `ppopt solve`: a better hand strategy of another placement."""
    if other is None:
        return None
    return {
        "strategy": other.strategy,
        "value": plain(other.value),
        "speedup": plain_or_none(other.speedup),
        "placement": other.pipeline.resolved_placement,
        "chunks": other.pipeline.num_chunks,
        "routes": other.pipeline.routes,
    }


def of_evaluation(
    schedule: Schedule,
    seconds: float,
    jitter: Jitter | None = None,
    choice: StrategyChoice | None = None,
    lowering: Loss | None = None,
) -> dict[str, Any]:
    """Object of `ppopt eval`: the keys of `solve` without bound and proof.

    `options` are the options of the strategy, given or its own choice. An evaluation is not random
    and runs on one thread: seed 0, workers 1. `jitter` exists if there are random times,
    `partition_search` where the partition was chosen. The least value of the strategy over all
    partitions within the memory limits lies between its `lower_bound` and the value. The value is
    null if nothing within the limits was found; `proved` then says whether there is nothing.
    `operations_alone` exists where transfers take time and PyTorch can run the order: over streams,
    its makespan in the order of its own times (`own`), as PyTorch lowers a file of operations alone
    (`lowered`), and the `loss`.
    """
    found = summary(schedule)
    return {
        "schema": SCHEMA,
        **{key: found[key] for key in ("strategy", "status", "objective", "value")},
        **{key: found[key] for key in FIGURES},
        "idle": by_cause(schedule),
        "imbalance": found["imbalance"],
        "fits_limit": found["fits_limit"],
        "options": dict(schedule.origin.options),
        **placed(schedule.pipeline),
        "routes": schedule.pipeline.routes,
        **_choice(choice),
        **_operations_alone(schedule, lowering),
        "seed": 0,
        "workers": 1,
        "versions": versions(),
        "solve_seconds": round(seconds, 3),
        **_jitter(jitter),
        **_native(schedule),
    }


def _operations_alone(schedule: Schedule, loss: Loss | None) -> dict[str, Any]:
    """What PyTorch's own lowering loses, under one key; empty if it does not apply."""
    if loss is None:
        return {}
    time = schedule.pipeline.ticks.time
    figures = {"own": plain(time(loss.own)), "lowered": plain(time(loss.lowered))}
    return {"operations_alone": figures | {"loss": round(float(loss.share), 6)}}


def _choice(choice: StrategyChoice | None) -> dict[str, Any]:
    """How the partition was chosen, under one key; empty if it was given."""
    if choice is None:
        return {}
    figures = {
        "lower_bound": plain_or_none(choice.lower_bound),
        "gap": plain_or_none(choice.gap),
        "proved": choice.proved,
        "partitions": choice.partitions,
        "evaluated": choice.evaluations,
    }
    return {"partition_search": figures}


def _jitter(jitter: Jitter | None) -> dict[str, Any]:
    """The objective under random times, under one key; empty without random times."""
    if jitter is None:
        return {}
    figures = ("mean", "p95", "degradation")
    given = {"deviation": jitter.deviation, "samples": len(jitter.values), "seed": jitter.seed}
    return {"jitter": given | {name: round(getattr(jitter, name), 6) for name in figures}}


def of_comparison(comparison: Comparison) -> dict[str, Any]:
    """Object of `ppopt compare`.

    With random times, `steadiest` names the strategy that degrades least, and `fragile` the best
    strategy on paper and the one that is better on average, or is null.
    """
    optimum = comparison.optimum
    hands = [row.schedule for row in comparison.baselines]
    searched = of_result(optimum, best(hands, optimum))
    return {
        "schema": SCHEMA,
        **{key: searched[key] for key in _SEARCHED},
        **unit_names(optimum.pipeline),
        "link_mode": optimum.pipeline.link_mode.value,
        "rows": [_row(row, comparison, hands) for row in comparison.rows],
        "skipped": _skipped(comparison.skipped),
        **_robustness(comparison),
    }


def _robustness(comparison: Comparison) -> dict[str, Any]:
    steadiest, fragile = comparison.steadiest, comparison.fragile
    if steadiest is None:
        return {}
    name = partial(_strategy, comparison=comparison)
    pair = fragile and dict(zip(("best", "rival"), map(name, fragile), strict=True))
    return {"steadiest": name(steadiest), "fragile": pair}


def _strategy(row: ComparisonRow, comparison: Comparison) -> str:
    return "optimal" if comparison.search(row) else str(row.schedule.origin.strategy)


def _row(row: ComparisonRow, comparison: Comparison, hands: Sequence[Schedule]) -> dict[str, Any]:
    search = comparison.search(row)
    if search is not None:
        shown = of_result(search, best(hands, search)) | _jitter(row.jitter)
    else:
        shown = of_evaluation(row.schedule, row.seconds, row.jitter)
    return shown | {
        "strategy": _strategy(row, comparison),
        "fits_limit": row.fits_limit,
        "ratio_to_best": plain_or_none(row.ratio_to_best),
        "ratio_to_optimum": plain_or_none(row.ratio_to_optimum),
        "optimum_proved": row.optimum_proved,
        "communication": row.communication,
    }


def _skipped(skipped: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"strategy": name, "reason": reason} for name, reason in skipped]


def _within(found: Frontier, share: Fraction | None) -> dict[str, Any]:
    point = None if share is None else found.within(share)
    if share is None or point is None:
        return {}
    shown = {
        "share": plain(share),
        "limit": plain(point.limit),
        "value": plain_or_none(point.result.value),
        "beyond": plain_or_none(found.beyond(share)),
    }
    return {"within": shown}


def of_frontier(found: Frontier, within: Fraction | None = None) -> dict[str, Any]:
    """Object of `ppopt frontier`.

    Everything holds within `mem_limit`, the pipeline's own limits. `points`, by ascending limit:
    the object of `ppopt solve` within a `limit`, and whether that limit is proved to be the least
    for its value (`limit_proved`). `searched`: what was chosen with every schedule. `bounds`: no
    schedule within a `limit` is below its `lower_bound`. `strategies`: the object of `ppopt eval`,
    its largest peak (`memory`), and its ratio to the best schedule within that memory. `within`
    exists where a share is asked for: the least `limit` of a point that is at most so much slower
    than the best found, its `value`, and the largest limit proved not to do (`beyond`, or null).
    """
    least, enough = found.least, found.enough
    hands = [hand.schedule for hand in found.baselines]
    provenance = found.provenance
    return {
        "schema": SCHEMA,
        "status": found.status.value,
        "objective": found.objective.value,
        "proof": found.proof,
        "mem_limit": limits(found.pipeline),
        **unit_names(found.pipeline),
        "searched": list(found.searched),
        "link_mode": found.pipeline.link_mode.value,
        "least_limit": plain_or_none(least and least.limit),
        "least_limit_proved": least is not None and least.least,
        "useful_limit": plain_or_none(enough and enough.limit),
        "useful_limit_proved": found.enough_proved,
        **_within(found, within),
        "points": [
            of_result(point.result, best(hands, point.result))
            | {"limit": plain(point.limit), "limit_proved": point.least}
            for point in found.points
        ],
        "bounds": [
            {"limit": plain(limit), "lower_bound": plain(bound)} for limit, bound in found.bounds
        ],
        "strategies": [_hand(hand) for hand in found.baselines],
        "skipped": _skipped(found.skipped),
        "backward_kind": found.backward_kind.value,
        "seed": provenance.seed,
        "workers": provenance.workers,
        "versions": provenance.versions,
        "solve_seconds": round(found.solve_seconds, 3),
    }


def _hand(hand: FrontierHand) -> dict[str, Any]:
    return of_evaluation(hand.schedule, hand.seconds) | {
        "memory": plain(hand.memory),
        "ratio_to_best": plain_or_none(hand.ratio),
    }


def of_verification(
    schedule: Schedule, found: Sequence[Violation], bound: Recheck | None = None
) -> dict[str, Any]:
    """Object of `ppopt verify`: the violations, or the figures if there are none.

    `fits_limit` is as in `ppopt eval`, which reports the limit that `ppopt verify` enforces.
    `bound` exists where the re-checker has checked the bound.
    """
    figures = unit_names(schedule.pipeline) if found else summary(schedule)
    ticks = schedule.pipeline.ticks
    return {
        "schema": SCHEMA,
        "verified": not found,
        "measured": is_measured(schedule),
        "fits_limit": all(violation.rule is not Rule.MEMORY for violation in found),
        "violations": [
            {
                "rule": violation.rule.value,
                "ops": [str(op) for op in violation.ops],
                "device": violation.device,
                "time": None if violation.time is None else plain(ticks.time(violation.time)),
                "message": violation.message,
            }
            for violation in found
        ],
        **{key: figures.get(key) for key in FIGURES},
        **placed(schedule.pipeline),
        **({} if bound is None else {"bound": _bound(schedule, bound)}),
    }


def _bound(schedule: Schedule, again: Recheck) -> dict[str, Any]:
    from ppopt.formats.schedule_json import schedule_to_object  # noqa: PLC0415  loads on use

    made = again.counterexample
    return {
        "lower_bound": origin_json.number(schedule.origin.lower_bound),
        "verdict": again.verdict.value,
        "reason": again.reason,
        "devices": list(again.devices),
        "seconds": round(again.seconds, 3),
        "counterexample": None if made is None else schedule_to_object(made),
    }


def _native(schedule: Schedule | None) -> dict[str, Any]:
    return {"schedule": schedule, "verified": schedule is not None}
