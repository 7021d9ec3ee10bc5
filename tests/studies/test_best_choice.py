"""The best partition and recompute for a strategy, against every one of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Layer, Model, Pipeline, Schedule
from ppopt.problem.objective import Objective
from ppopt.schedule.order_columns import OrderColumns
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.options import SolveOptions
from ppopt.strategies import registry
from ppopt.studies import strategy_search
from ppopt.studies.compare import compare
from ppopt.studies.strategy_evaluator import StrategyEvaluator
from tests.clock import work_clock
from tests.oracles.configurations import partitions
from tests.solver.partitions.test_partition_search import layers
from tests.tiers import first, slow

WAYS = ("none", "full")
STRATEGIES = ("1f1b", "gpipe", "zb-h1", "interleaved", "1f1b-v", "zbv", "zb-2p")


def drawn(seed: int, count: int = 6) -> Model:
    """Layers of unequal costs, most of which save memory by recompute."""
    rng = Random(seed)
    return Model(
        [
            Layer(
                forward=rng.randint(1, 4),
                backward=rng.randint(2, 6),
                weight=1,
                activation=(full := rng.randint(1, 4)),
                kept=rng.randint(0, full),
                static=rng.randint(0, 2),
            )
            for _ in range(count)
        ]
    )


def limited(seed: int, strategy: str, share: Fraction, **more: object) -> Pipeline:
    """A pipeline whose limit lies between the strategy's peaks with and without recompute."""
    base = drawn(seed, 4).pipeline(devices=2, batches=4, recompute="none", **more)
    peaks = [peak_of(ppopt.evaluate(replace(base, recompute=way), strategy)) for way in WAYS]
    limit = min(peaks) + share * (peaks[0] - min(peaks))
    return replace(base, recompute="search", mem_limit=limit)


def peak_of(schedule: Schedule) -> Fraction:
    """The largest peak of all devices, in the user's unit."""
    return max(map(schedule.pipeline.ticks.memory, schedule.metrics.peak_memory_ticks))


def value_of(schedule: Schedule, objective: Objective = Objective.MAKESPAN) -> Fraction:
    return schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective))


def every_partition(pipeline: Pipeline, stages: int) -> Iterator[Pipeline]:
    """The pipeline cut in every way."""
    every = partitions(len(pipeline.model), stages)
    return (replace(pipeline, partition=counts) for counts in every)


def every_choice(pipeline: Pipeline, strategy: str) -> Iterator[Schedule]:
    """The strategy with every set of layers that recompute, within the limits."""
    places = range(len(pipeline.model))
    for count in range(len(places) + 1):
        for chosen in combinations(places, count):
            model = pipeline.model.with_choice(dict.fromkeys(chosen, True), {})
            schedule = ppopt.evaluate(replace(pipeline, model=model, recompute=None), strategy)
            if schedule.fits_limits:
                yield schedule


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [0, slow(1), 2, slow(3)])
def test_no_partition_is_better_than_the_one_proved_best(strategy: str, seed: int) -> None:
    """Those within the limit first; where none is, the one that exceeds it least."""
    rng = Random(seed)
    objective = Objective(rng.choice(["makespan", "device-span"]))
    pipe = drawn(seed, 5).pipeline(
        devices=2, batches=4, p2p=rng.choice((0, 1)), partition="search",
        mem_limit=rng.choice((None, 12, 20, 30)),
    )  # fmt: skip
    choice = ppopt.best_choice(pipe, strategy, objective)
    every = [
        ppopt.evaluate(candidate, strategy, objective)
        for candidate in every_partition(pipe, choice.schedule.pipeline.num_stages)
    ]
    fitting = [value_of(schedule, objective) for schedule in every if schedule.fits_limits]
    assert choice.proved and choice.partitions == len(every)
    assert choice.schedule.fits_limits == bool(fitting)
    assert choice.value == value_of(choice.schedule, objective)
    if fitting:
        assert choice.value == choice.lower_bound == min(fitting) and choice.gap == 0
    else:
        assert choice.lower_bound is None and choice.gap is None
        assert excess(choice.schedule) == min(map(excess, every))


def excess(schedule: Schedule) -> Fraction:
    """Memory by which devices exceed their limits, all together."""
    assert schedule.pipeline.limits is not None
    peaks = map(schedule.pipeline.ticks.memory, schedule.metrics.peak_memory_ticks)
    return sum(
        (max(peak - limit, 0) for peak, limit in zip(peaks, schedule.pipeline.limits, strict=True)),
        Fraction(0),
    )


@pytest.mark.parametrize("strategy", ["chimera", "seq-1f1b", "dualpipe"])
def test_partitions_of_two_routes_and_of_slices_are_all_tried(strategy: str) -> None:
    """Bounds know neither; so the proof takes every partition."""
    pipe = drawn(2).pipeline(devices=2, batches=4, partition="search")
    choice = ppopt.best_choice(pipe, strategy)
    every = every_partition(pipe, choice.schedule.pipeline.num_stages)
    assert choice.proved
    assert choice.value == min(value_of(ppopt.evaluate(candidate, strategy)) for candidate in every)


@pytest.mark.parametrize("strategy", ["1f1b", "interleaved", "zbv"])
def test_the_search_alone_finds_the_best_partition(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are too many to try them all: no point is tried in order, and none by bounds."""
    monkeypatch.setattr(strategy_search, "MAX_EVALUATED", 0)
    monkeypatch.setattr(strategy_search, "MAX_EVALUATED_ORDERS", 0)
    for seed in range(2):
        pipe = drawn(seed, 6).pipeline(devices=2, batches=3, partition="search", mem_limit=40)
        search = strategy_search.StrategySearch(pipe, strategy, Objective.MAKESPAN)
        search.descend()
        assert not search.all_evaluated and search.schedule().fits_limits
        every = every_partition(pipe, search.space.num_stages)
        schedules = (ppopt.evaluate(candidate, strategy) for candidate in every)
        best = min(value_of(schedule) for schedule in schedules if schedule.fits_limits)
        assert search.best is not None
        value = pipe.ticks.time(search.best[0].value)
        assert value == value_of(search.schedule()) == best


def test_a_gap_is_told_where_there_are_too_many_partitions() -> None:
    pipe = layers(60).pipeline(devices=8, batches=32, chunks=2, partition="search")
    with work_clock():
        choice = ppopt.best_choice(pipe, "interleaved", time_limit=0.3)
    assert not choice.proved and choice.gap is not None and choice.lower_bound is not None
    assert 0 < choice.gap < Fraction(1, 2)
    assert choice.lower_bound < choice.value


def test_as_many_configurations_as_allowed_are_all_evaluated() -> None:
    """Five layers in two stages: four partitions, the balanced partition first."""
    pipeline = drawn(1, 5).pipeline(devices=2, batches=2, recompute="none", partition="search")
    choice = strategy_search.StrategySearch(pipeline, "1f1b", Objective.MAKESPAN).space
    assert choice.every(3, 10) is None
    (keys,) = choice.every(4, 10) or ()
    assert sorted(keys.tolist()) == [[1, 4], [2, 3], [3, 2], [4, 1]]
    assert tuple(keys[0]) == pipeline.counts


@pytest.mark.parametrize("max_evaluated", [0, strategy_search.MAX_EVALUATED])
def test_what_ctrl_c_cuts_is_not_said_to_be_proved(
    max_evaluated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it comes, there is a result, and its bound holds; later moments are a sample."""
    evaluator = StrategyEvaluator
    estimates, left = evaluator._estimates, 0

    def interrupted(self: Any, keys: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)
        return estimates(self, keys)

    monkeypatch.setattr(strategy_search, "MAX_EVALUATED", max_evaluated)
    monkeypatch.setattr(strategy_search, "PATIENCE", 5)
    monkeypatch.setattr(OrderColumns, "together", 2)
    monkeypatch.setattr(evaluator, "_estimates", interrupted)
    pipe = drawn(3, 8).pipeline(devices=3, batches=4, partition="search", mem_limit=24)
    every = [ppopt.evaluate(candidate, "1f1b") for candidate in every_partition(pipe, 3)]
    best = min(value_of(schedule) for schedule in every if schedule.fits_limits)
    moment, cut = 0, True
    while cut:
        left = moment = moment + 1 + moment // 8
        choice = ppopt.best_choice(pipe, "1f1b")
        cut = choice.interrupted
        assert choice.value == value_of(choice.schedule) >= best
        if choice.schedule.fits_limits:
            assert choice.lower_bound <= best
            assert choice.proved <= (choice.value == best)
        else:
            assert not choice.proved and choice.lower_bound is None
    assert moment > 8 and choice.proved


@pytest.mark.parametrize("limit", [slow(6), 8, slow(10)])
@pytest.mark.parametrize("seed", first(1, range(2)))
def test_bounds_that_are_asked_again_prove_no_more(seed: int, limit: int) -> None:
    """All listed points were followed, but dominated choices of recompute may be better."""
    pipe = drawn(seed, 5).pipeline(
        devices=2, batches=3, partition="search", recompute="search", mem_limit=limit
    )
    choice = strategy_search.StrategySearch(pipe, "zbv", Objective.MAKESPAN)
    search = ConfigurationSearch(choice, choice.problem, SolveOptions())
    choice.descend(4)
    search.bound(1.0)
    search.search()
    assert search.state.next_key is None or search.state.closed
    before = search.state.closed
    search.bound(1.0)
    search.enumerate_listed()
    assert search.state.closed == before


def test_what_is_given_is_kept() -> None:
    pipe = layers(5).pipeline(devices=2, batches=4, partition=(4, 2), mem_limit=1)
    choice = ppopt.best_choice(pipe, "1f1b")
    assert choice.schedule == ppopt.evaluate(pipe, "1f1b")
    assert choice.proved and choice.partitions == 1 and not choice.schedule.fits_limits


def test_compare_gives_every_strategy_its_best_partition() -> None:
    model = layers(5)
    pipe = model.pipeline(devices=2, batches=3, partition="search")
    compared = compare(pipe, strategies=["1f1b", "gpipe", "zb-h1"], workers=1, time_limit=600)
    best = ppopt.solve(pipe, workers=1)
    assert compared.optimum.value == best.value
    for row in compared.rows:
        name = row.schedule.origin.strategy
        if name not in ("searched", None) and row.schedule.pipeline.num_chunks == 1:
            chosen = ppopt.best_choice(pipe, name)
            assert row.value == chosen.value


def test_what_evaluates_one_partition_says_so() -> None:
    pipe = layers(5).pipeline(devices=2, batches=4, partition="search")
    with pytest.raises(InputError, match=r"evaluate, unlike ppopt\.best_choice, does not"):
        ppopt.evaluate(pipe, "1f1b")


@pytest.mark.parametrize("strategy", ["1f1b", "gpipe", "zb-h1", "interleaved", "1f1b-v"])
@pytest.mark.parametrize("seed", first(1, range(3)))
def test_no_recompute_within_the_limit_is_faster(strategy: str, seed: int) -> None:
    """Orders that do not depend on times, one stage per device or two: against all sets."""
    partition = (2, 2) if registry()[strategy].chunks == 1 else (1, 1, 1, 1)
    pipeline = limited(seed, strategy, Fraction(seed + 1, 4), partition=partition)
    choice = ppopt.best_choice(pipeline, strategy)
    assert choice.proved and choice.schedule.fits_limits
    assert choice.value == min(map(value_of, every_choice(pipeline, strategy)))


SOME = ("1f1b", "interleaved", "zbv")


@pytest.mark.parametrize(
    ("strategy", "partition"),
    [
        *((strategy, "given") for strategy in sorted(registry())),
        *((strategy, "search") for strategy in SOME),
        *(slow(strategy, "search") for strategy in sorted(registry()) if strategy not in SOME),
    ],
)
def test_chosen_recompute_keeps_a_limit_that_none_or_full_keeps(
    strategy: str, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is no slower, also if there is hardly any time to search."""
    monkeypatch.setattr(strategy_search, "MAX_EVALUATED_ORDERS", 0)
    rule = registry()[strategy]
    base = rule.apply(drawn(0, 8).pipeline(devices=2, batches=4), ppopt.Options())
    base = replace(base, partition=base.counts)
    peak = peak_of(ppopt.evaluate(replace(base, recompute="full"), strategy))
    for headroom in (0, Fraction(3, 2)):
        asked = replace(base, mem_limit=peak + headroom)
        ways = [ppopt.evaluate(replace(asked, recompute=way), strategy) for way in WAYS]
        minimum = min(value_of(schedule) for schedule in ways if schedule.fits_limits)
        partition_asked = asked.counts if partition == "given" else partition
        chosen = replace(asked, recompute="search", partition=partition_asked)
        choice = ppopt.best_choice(chosen, strategy, time_limit=0.02)
        assert choice.schedule.fits_limits and choice.value <= minimum


def test_the_reported_model_keeps_its_limit_with_chosen_recompute() -> None:
    """ZB-V held 90.9 of 80 GiB with chosen recompute, and 64.9 with full."""
    model = Model(
        [
            {"role": "embedding", "forward": 0.6, "backward": 0.9, "weight": 0.9, "static": 6,
             "activation": 0.06},
            {"count": 32, "forward": 5, "backward": 10.4, "weight": 4.6, "static": 7,
             "activation": 1.3, "kept": 0.065},
            {"role": "head", "forward": 9.5, "backward": 19, "weight": 9, "static": 6,
             "activation": 2.1},
        ]
    )  # fmt: skip
    asked = model.pipeline(devices=8, batches=32, p2p=0.2, mem_limit=80, recompute="search")
    choice = ppopt.best_choice(asked, "zbv", time_limit=1)
    full = ppopt.evaluate(replace(asked, recompute="full"), "zbv")
    assert full.fits_limits and choice.schedule.fits_limits
    assert choice.value <= value_of(full)


def test_nothing_recomputes_without_a_limit_or_within_it() -> None:
    base = replace(limited(1, "1f1b", Fraction(1)), mem_limit=None)
    assert not any(ppopt.best_choice(base, "1f1b").schedule.pipeline.recomputed)
    wide = replace(base, mem_limit=10**6)
    assert not any(ppopt.best_choice(wide, "1f1b").schedule.pipeline.recomputed)


def test_the_least_is_exceeded_where_nothing_fits() -> None:
    """The limit is reported, not enforced."""
    tight = replace(limited(1, "1f1b", Fraction(1), partition=(2, 2)), mem_limit=Fraction(1, 2))
    choice = ppopt.best_choice(tight, "1f1b")
    full = ppopt.evaluate(replace(tight, recompute="full"), "1f1b")
    assert choice.proved and choice.lower_bound is None and not choice.schedule.fits_limits
    assert excess(choice.schedule) == excess(full)


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_the_best_partition_and_recompute_together(seed: int) -> None:
    """Against every partition with every set of layers that recompute."""
    pipeline = limited(seed, "1f1b", Fraction(1, 2))
    choice = ppopt.best_choice(replace(pipeline, partition="search"), "1f1b")
    best = min(
        value_of(schedule)
        for candidate in every_partition(pipeline, 2)
        for schedule in every_choice(candidate, "1f1b")
    )
    assert choice.proved and choice.schedule.fits_limits
    assert choice.value == value_of(choice.schedule) == choice.lower_bound == best


@pytest.mark.parametrize("partition", ["balanced", "search"])
def test_compare_gives_every_strategy_its_recompute(partition: str) -> None:
    """The optimum, which chooses recompute too, is no slower than any row that fits.

    The limit is that of the balanced cut, 2 and 2.
    """
    pipeline = replace(limited(1, "1f1b", Fraction(0), partition=(2, 2)), partition=partition)
    strategies = ("1f1b", "gpipe", "interleaved", "zbv")
    comparison = compare(pipeline, strategies=strategies, time_limit=600, workers=1)
    assert comparison.optimum.value is not None
    rows = {row.schedule.origin.strategy: row for row in comparison.rows}
    assert rows["1f1b"].fits_limit
    assert any(any(row.schedule.pipeline.recomputed) for row in comparison.baselines)
    assert all(
        row.ratio_to_optimum is None or row.ratio_to_optimum >= 1
        for row in comparison.baselines
        if row.fits_limit and row.optimum_proved
    )


def test_ranks_count_work_around_the_microbatches_to_its_last_digit() -> None:
    """Gathered weights of 2.4 lie between two whole numbers, as only their limits tell."""
    layer = Layer(forward=1, activation=1, optimizer="0.4", unshard_memory="0.4")
    pipeline = Model([layer] * 5).pipeline(
        devices=2, batches=2, partition="search", mem_limit="4.5"
    )
    search = strategy_search.StrategySearch(pipeline, "1f1b", Objective.MAKESPAN)
    search.descend(3)
    schedule = search.schedule()
    assert search.fits == schedule.fits_limits
    assert search.best is not None
    assert pipeline.ticks.time(search.best[0].value) == value_of(schedule)


def test_a_dominated_choice_may_be_better_in_an_order_that_depends_on_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search tries no dominated choice of recompute, so its bound is below their values.

    Of all partitions and choices, this one has the smallest value.
    """
    monkeypatch.setattr(strategy_search, "PATIENCE", 2)
    fields = [
        {"forward": 4, "activation": 4, "static": 2, "workspace": 1},
        {"forward": 2, "activation": 2, "memory_b": 1, "static": 1, "recompute_time": 1, "kept": 2},
        {"forward": 3, "activation": 3, "backward": 5, "weight": 3},
        {"forward": 1},
        {"forward": 3, "activation": 2, "backward": 5, "weight": 2, "static": 2},
    ]
    pipeline = Model([Layer(**layer) for layer in fields]).pipeline(
        devices=2, batches=4, mem_limit=13, partition="search", recompute="search"
    )
    choice = ppopt.best_choice(pipeline, "v-min", time_limit=600)
    model = pipeline.model.with_choice(dict.fromkeys((0, 1, 3), True), {})
    better = replace(pipeline, model=model, partition=(1, 1, 2, 1), recompute=None)
    schedule = ppopt.evaluate(better, "v-min")
    best = value_of(schedule)
    assert schedule.fits_limits
    assert best < choice.value, "the pipeline is no example any more"
    assert choice.lower_bound is not None
    assert choice.lower_bound <= best and not choice.proved


@pytest.mark.parametrize("strategy", ["1f1b", "zbv"])
@pytest.mark.parametrize("seed", first(2, range(6)))
def test_what_fits_no_limit_is_shown_with_the_smallest_peak(strategy: str, seed: int) -> None:
    """Not with the least sum of what devices are over: one device may then be far over."""
    random = Random(seed)
    drawn = [
        {"forward": random.randint(1, 4), "activation": random.randint(1, 4), "static": 3}
        for _ in range(7)
    ]
    model = Model(drawn)
    chunks = 2 if strategy == "zbv" else 1
    pipeline = model.pipeline(
        devices=3, batches=4, placement="v" if chunks == 2 else "linear", chunks=chunks,
        partition="search", mem_limit=5,
    )  # fmt: skip
    choice = ppopt.best_choice(pipeline, strategy, time_limit=600)
    peaks = [
        max(ppopt.evaluate(replace(pipeline, partition=counts), strategy).metrics.peak_memory)
        for counts in partitions(len(drawn), 3 * chunks)
    ]
    assert choice.lower_bound is None
    assert max(choice.schedule.metrics.peak_memory) == min(peaks)


def test_halves_of_memory_count_where_f_holds_frozen_activations() -> None:
    """F of the first four layers holds 1.5 + 0.5 + 0.5 next to two microbatches of 2: over 6."""
    frozen = {"forward": 1, "workspace": {"F": 0.5}, "frozen": True}
    model = [frozen | {"activation": 1.5}, frozen | {"activation": 0.5}]
    model += [{"forward": 2, "activation": 1}] * 3
    pipeline = Pipeline(stages=2, batches=3, model=model, partition="search", mem_limit=6)
    choice = ppopt.best_choice(pipeline, "1f1b")
    assert choice.proved and choice.schedule.fits_limits
    assert (choice.schedule.pipeline.counts, choice.value) == ((3, 2), 44)


def test_the_first_point_is_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is up at once: one partition of 45 was ranked, and says so."""
    model = Model([{"forward": 1 + index % 2} for index in range(11)])
    pipeline = model.pipeline(devices=3, batches=2, partition="search")
    monkeypatch.setattr(strategy_search, "MAX_EVALUATED", 0)
    search = strategy_search.StrategySearch(pipeline, "1f1b", Objective.MAKESPAN)
    search.descend(0)
    assert (search.evaluations, search.space.partitions) == (1, 45)
