"""The page of a plan over the parallelism says what the terminal says."""

from __future__ import annotations

import json
import re
from functools import cache
from html import unescape

from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.gpus import gpu_named
from ppopt.report.parallel import MAX_SHOWN, describe_parallel_plan, parallel_table
from ppopt.report.parallel_page import parallel_page
from ppopt.report.sections import paragraphs
from ppopt.studies.parallel_plan import plan_parallelism
from ppopt.studies.parallel_result import ParallelPlan
from ppopt.studies.parallel_set_up import PlanArguments
from ppopt.studies.parallel_space import ParallelSpace
from tests.clock import work_clock
from tests.factories.configs import SMALL


@cache
def planned() -> ParallelPlan:
    """Four GPUs in two replicas: one or two per rank, one or two sequences a microbatch."""
    space = ParallelSpace(
        architecture_of(SMALL), gpu_named("h100"), 4, 8,
        tensor=(1, 2), microbatch=(1, 2), data=(2,), context=(1,),
    )  # fmt: skip
    arguments = PlanArguments(
        placements=("linear",), chunks=(1,), strategies=("1f1b",), recompute=("none",)
    )
    with work_clock():
        return plan_parallelism(space, arguments, workers=1, time_limit=60)


def tables(page: str) -> list[list[list[str]]]:
    """Cells of every table as text, rows with heads first."""
    return [
        [
            [
                unescape(re.sub("<[^>]*>", "", cell))
                for cell in re.findall(r"<t[dh].*?</t[dh]>", row)
            ]
            for row in re.findall(r"<tr>.*?</tr>", table)
        ]
        for table in re.findall(r"<table>.*?</table>", page, re.DOTALL)
    ]


def test_the_page_has_every_combination_as_in_the_terminal() -> None:
    plan = planned()
    assert 1 < len(plan.rows) <= MAX_SHOWN
    columns = parallel_table(plan).columns
    headline, combinations, *_ = tables(parallel_page(plan))
    heads = [column.head.replace("\n", " ") for column in columns]
    rows = [[str(column.cell(row)) for column in columns] for row in plan.rows]
    assert combinations == [heads, *rows]
    assert [row[0] for row in headline] == ["", "current", "on PyTorch", headline[-1][0]]


def test_the_page_names_the_model_the_gpus_and_the_best_combination() -> None:
    plan, page = planned(), parallel_page(planned())
    title = re.search(r"<title>(.*?)</title>", page)
    assert title is not None and title[1].startswith(f"{plan.space.architecture.name}, ")
    assert title[1].endswith(" billion parameters, on 4 x h100: plan")
    assert plan.best is not None
    assert f"Best: {plan.best.parallelism}: " in page
    assert paragraphs(describe_parallel_plan(plan)) in page


def test_the_bound_of_the_page_is_that_of_all_combinations() -> None:
    """That of the best combination alone is higher, and says nothing of the others."""
    plan = planned()
    (data,) = re.findall(r'id="plan">(.*?)</script>', parallel_page(plan))
    written = json.loads(data)
    assert written["lower_bound"] == float(plan.lower_bound or 0)
    assert len(written["parallelism"]["rows"]) == len(plan.rows)
    assert not {"solve_seconds", "schedule"} & written.keys()
    assert "over the whole space" not in parallel_page(plan)
    assert parallel_page(plan) == parallel_page(plan)
