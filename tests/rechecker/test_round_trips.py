"""Round trips of microbatches that differ, against the formula of their module in every order."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ppopt.rechecker.equal_microbatches import _RoundTrip

TIMES = st.integers(0, 6).map(Fraction)
FACTORS = st.lists(st.integers(1, 6).map(Fraction), min_size=1, max_size=4)


def by_work(trip: _RoundTrip, order: tuple[Fraction, ...]) -> Fraction:
    """Head, all work of the device, and tail."""
    ends = trip.head * order[0] + trip.tail * order[-1] + trip.links - trip.link_of_way
    return ends + (trip.before + trip.behind) * sum(order)


def by_microbatch(trip: _RoundTrip, order: tuple[Fraction, ...], at: int) -> Fraction:
    """Head, F before the microbatch, its round trip, backwards behind it, and tail."""
    ends = trip.head * order[0] + trip.tail * order[-1] + trip.links
    own = order[at] * (trip.before + trip.way + trip.behind)
    return ends + trip.before * sum(order[:at]) + own + trip.behind * sum(order[at + 1 :])


@given(st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES), st.integers(0, 9), st.integers(0, 3), FACTORS)
def test_bounds_are_those_of_the_formula(
    times: tuple[Fraction, ...], way: int, ends: int, factors: list[Fraction]
) -> None:
    """In any order: the minimum over all orders, by work and by the largest microbatch."""
    trip = _RoundTrip(*times, links=way + ends, link_of_way=way)
    listed, largest = tuple(factors), factors.index(max(factors))
    assert trip.in_order(factors) == max(
        by_work(trip, listed), *(by_microbatch(trip, listed, at) for at in range(len(listed)))
    )
    around, work = list[Fraction](), list[Fraction]()
    for order in permutations(range(len(factors))):
        in_order = tuple(factors[position] for position in order)
        around.append(by_microbatch(trip, in_order, order.index(largest)))
        work.append(by_work(trip, in_order))
    if len(factors) > 1:
        assert trip.in_any_order(factors) == max(min(work), min(around))
    else:
        assert trip.in_any_order(factors) == trip.in_order(factors)
