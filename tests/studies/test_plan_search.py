"""How a plan divides its search: the best schedule's own partition is searched by itself."""

from __future__ import annotations

from random import Random

import ppopt
from ppopt import Objective, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.timing import schedule
from ppopt.solver.choices.result import known_result
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import checked_options
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanSpace


def test_polishing_betters_the_schedule_of_one_partition() -> None:
    """From one microbatch at a time; the partition stays, and no bound changes."""
    random = Random(0)
    layers = [
        {"forward": random.randint(2, 5), "activation": random.randint(1, 3)} for _ in range(8)
    ]
    space = PlanSpace(
        model=ppopt.Model(layers), devices=4, batches=(6,), placements=("linear",), chunks=(1,),
        recompute=("none",), fields={"mem_limit": 24},
    )  # fmt: skip
    search = PlanSearch(space, Objective.MAKESPAN, BackwardKind.SPLIT, checked_options(20, 1))
    (candidate,) = search._orders.candidates
    pipeline = space.model.pipeline(devices=4, batches=6, partition=[2, 2, 2, 2], mem_limit=24)
    made = schedule(pipeline, one_at_a_time(candidate.problem.instance))
    known = known_result(candidate.problem, made, checked_options(20, 1))
    inner = search._orders._search
    inner._take(inner._at((0, 2, 2, 2, 2)), known)
    candidate.refresh(None)
    bound, before = candidate.bound, candidate.value
    search._orders.search_best_partition(Deadline.after(2))
    assert candidate.bound == bound
    assert candidate.value < before / 2
    assert candidate.schedule.pipeline.counts == (2, 2, 2, 2)
    assert verify(candidate.schedule) == []
