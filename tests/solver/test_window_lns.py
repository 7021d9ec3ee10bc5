"""Local search by windows: what they find is valid, within limits, better, and repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, permutations, repeat
from random import Random

from ppopt import Objective, Pipeline, verify
from ppopt.problem.instance import Instance
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.solver.bounds import head_body_tail
from ppopt.solver.budget import Limits
from ppopt.solver.cp_sat import pairs
from ppopt.solver.heuristics.double_justification import Shop
from ppopt.solver.heuristics.window import Layout, Run, Window, holdings, timed
from ppopt.solver.heuristics.window_lns import WindowSearch, layouts
from ppopt.solver.parameters import WindowParams
from ppopt.solver.result import Status
from ppopt.solver.search import solve
from tests.factories.instances import Case, middle_cases, tiny_cases
from tests.factories.searches import waiting
from tests.oracles import exhaustive

LIMITS = Limits(60, 1, 0)
SKEW = WindowParams().skew


def feasible(cases: Iterator[Case]) -> Iterator[Shop]:
    """Shops of the cases that windows apply to and that have a schedule."""
    for case in cases:
        instance = Instance.uniform(case.pipeline, fused=case.fused)
        paired = pairs.useful(instance)
        if paired or head_body_tail.infeasibility(instance):
            continue
        shop = Shop(Problem(case.pipeline, Objective.MAKESPAN, case.fused))
        if all(shop.time):
            yield shop


def alone(shop: Shop) -> list[int]:
    """Starts of one microbatch after another."""
    pipeline = shop.problem.pipeline
    orders = one_at_a_time(pipeline, fused=shop.problem.fused)
    return shop.starts(timing.schedule(pipeline, orders, Objective.MAKESPAN))


def shop_of(pipeline: Pipeline) -> Shop:
    return Shop(Problem(pipeline, Objective.MAKESPAN, False))


def settled(shop: Shop) -> list[int]:
    """Starts of a schedule that justification no longer shortens."""
    start = alone(shop)
    for _ in range(3):
        start = shop.justified(start)
    return start


def window(layout: Layout, first: int, after: int) -> Window:
    return Window(layout, holdings(layout.run.shop), first, after)


def upright(shop: Shop, start: list[int], first: int, after: int) -> Window:
    return window(Layout(Run(shop, start)), first, after)


def test_a_window_over_all_operations_is_the_whole_problem() -> None:
    """The optimum of an exhaustive search; the window says so, and finds nothing below it."""
    bettered = 0
    for shop in feasible(tiny_cases(71, 150)):
        problem, start = shop.problem, alone(shop)
        best = exhaustive.best(problem.pipeline, fused=problem.fused, objective="makespan")
        assert best is not None
        found = upright(shop, start, 0, shop.size).better(LIMITS)
        assert found.complete
        if found.order is None:
            assert shop.value(start) == best
            continue
        bettered += 1
        made = timed(shop, found.order)
        assert shop.value(made) == best
        assert upright(shop, made, 0, shop.size).better(LIMITS).order is None
    assert bettered > 30


def test_what_windows_find_is_valid_within_limits_and_better() -> None:
    rng, bettered = Random(72), 0
    for shop in feasible(middle_cases(72, 120)):
        start = alone(shop)
        value = shop.value(start)
        first, after = sorted(rng.sample(range(shop.size + 1), 2))
        cut = window(rng.choice(layouts(Run(shop, start), SKEW)), first, after)
        found = cut.better(LIMITS)
        if found.order is None:
            continue
        bettered += 1
        order = list(cut.layout.order)
        order[first:after] = found.order
        made = shop.schedule(timed(shop, order))
        assert verify(made) == []
        assert made.fits_limits
        assert made.metrics.makespan < value
    assert bettered > 20


def test_slanted_orders_are_orders_of_the_same_schedule() -> None:
    """Timed again, operations of the order by start and slant start when they did.

    Also where times differ so much that slants are lost in the rounding of starts.
    """
    slanted, short = 0, Fraction(1, 1000)
    wide = Pipeline(stages=2, batches=3, forward=[10**12, short], backward=2 * short, weight=short)
    shops = (shop_of(wide), *feasible(middle_cases(74, 120)))
    for shop, start in ((shop, made(shop)) for shop in shops for made in (alone, settled)):
        for layout in layouts(Run(shop, start), SKEW):
            assert timed(shop, layout.order) == start
            slanted += layout.order != sorted(range(shop.size), key=start.__getitem__)
    assert slanted > 60


def test_what_a_window_says_without_a_model_holds_for_all_its_orders() -> None:
    """No order is below its least, and none shortens the run where it is hopeless."""
    rng, hopeless, better = Random(75), 0, 0
    for shop in chain.from_iterable(repeat(one, 3) for one in feasible(middle_cases(75, 150))):
        start, size = settled(shop), rng.randint(2, min(6, shop.size))
        value = shop.value(start)
        first = rng.randrange(shop.size - size + 1)
        cut = window(rng.choice(layouts(Run(shop, start), SKEW)), first, first + size)
        order = list(cut.layout.order)
        hopeless += cut.hopeless
        for inside in permutations(cut.inside):
            order[first : first + size] = inside
            place = {op: at for at, op in enumerate(order)}
            if all(place[x] < place[op] for op in inside for x, _ in shop.fixed.ahead[op]):
                reached = shop.value(timed(shop, order))
                assert cut.least <= reached
                assert reached >= value or not cut.hopeless
                better += reached < value
    assert hopeless > 20
    assert better > 20


def test_memory_that_goes_in_a_circle_keeps_the_schedule() -> None:
    """Two operations of no length: one takes, the other gives, each only after the other."""
    pipeline = Pipeline(
        stages=2,
        batches=19,
        placement="interleaved",
        forward=[8, 6],
        backward=[0, 2],
        weight=0,
        activation=[4, 2],
        memory_b=4,
        mem_limit=11,
    )
    result = solve(pipeline, time_limit=2, workers=1)
    assert result.status in (Status.FEASIBLE, Status.OPTIMAL)


def test_backwards_that_hurry_make_valid_schedules_within_limits() -> None:
    """Whatever hurries, and by how much: data flow and memory limits are kept."""
    rng, other = Random(76), 0
    for shop in chain.from_iterable(
        repeat(one, 5) for one in feasible(middle_cases(76, 200, routes=1))
    ):
        start = shop.justified(alone(shop), [rng.random() for _ in range(shop.size)])
        count = rng.randint(1, shop.problem.pipeline.batches)
        made = shop.hurried(start, count, rng.choice((0.25, 0.5, 1.0)))
        schedule = shop.schedule(made)
        assert verify(schedule) == []
        assert schedule.fits_limits
        other += made != start
    assert other > 20


def test_a_window_sees_what_holds_memory_around_it() -> None:
    """One device, two stages, room for two activations: F0 F1 B1 W1 B0 W0 is the only way.

    Two microbatches thus take twice 6, and no window of them finds less.
    """
    pipeline = Pipeline(stages=2, batches=2, placement=(0, 0), backward=2, weight=1, mem_limit=2)
    shop = shop_of(pipeline)
    start = alone(shop)
    assert shop.value(start) == 12
    for first in range(shop.size):
        found = upright(shop, start, first, min(shop.size, first + 7)).better(LIMITS)
        assert (found.order, found.complete) == (None, True)


def test_one_worker_finds_the_same_again_and_two_find_no_worse() -> None:
    """Two chunks in tight memory, from one microbatch at a time."""
    pipeline = Pipeline(stages=3, batches=5, placement="v", activation=2, mem_limit=5)
    shop = shop_of(pipeline)
    start = alone(shop)

    def run(workers: int) -> list[int]:
        seen: list[int] = [shop.value(start)]
        budget = waiting(shop.problem).budget(1.0, workers)

        def found(value: int, made: list[int]) -> None:
            assert value == shop.value(made) < seen[-1]
            assert verify(shop.schedule(made)) == []
            seen.append(value)

        end = WindowSearch(shop, Random(3)).search(start, budget, found)
        assert shop.value(end) == seen[-1]
        return end

    one = run(1)
    assert shop.value(one) < shop.value(start)
    assert run(1) == one
    assert shop.value(run(2)) < shop.value(start)
