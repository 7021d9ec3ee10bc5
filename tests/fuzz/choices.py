"""Searches that choose more than an order: backwards, placements, partitions, recompute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import ppopt
from ppopt import Objective, Pipeline, Result
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.problem import Problem
from tests.fuzz import judge, layers, pipelines
from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.fuzz.searches import Search, draw_options, optimum, rechecked
from tests.oracles import exhaustive_pairs
from tests.oracles.configurations import partitions, placements

MORE = (None, None, None, None, 0, 1)
"""By how many ticks a bound is raised before it is re-checked; None: it is not re-checked."""


MOST_IN_ORDERS = 9
"""Most operations of a device whose every order, with every pair, is written down."""


class Mixed(Search):
    """Every backward whole or split, against every such choice."""

    name = "mixed"
    goal = 4000
    ops = 10

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline whose B, W and BW are free of each other."""
        case = super().draw(rng)
        case["options"]["backward_kind"] = rng.choice(("mixed", "mixed", "mixed", "split", "whole"))
        return case | {"more": rng.choice(MORE)}

    def fields(self, rng: Random, *, fused: bool) -> dict[str, Any]:
        """Draw the pipeline."""
        return pipelines.draw(rng, ops=self.ops, fused=fused, free=True)


class Choice(Category):
    """A search over configurations, against the optimum of each."""

    proved = 4.0
    """Seconds of the processor after which a search must have ended by proof."""

    def expected(self, case: Case) -> Fraction | None:
        """Least value over all configurations, in the user's unit; None: none has a schedule."""
        optima = (
            (pipeline, self.optimum(pipeline, case)) for pipeline in self.configurations(case)
        )
        values = [
            Fraction(best, pipeline.ticks.per_unit) for pipeline, best in optima if best is not None
        ]
        return min(values, default=None)

    def optimum(self, pipeline: Pipeline, case: Case) -> int | None:
        """Least value of a configuration in ticks; None if nothing keeps the limit."""
        return optimum(pipeline, case)

    def configurations(self, case: Case) -> Iterator[Pipeline]:
        """Every configuration as a pipeline that says all."""
        raise NotImplementedError

    def searched(self, case: Case) -> Result:
        """What the product finds."""
        return ppopt.solve(pipelines.pipeline_of(case), workers=1, **case["options"])

    def check(self, case: Case) -> Iterator[Finding]:
        """Search, and compare with the least of all configurations."""
        optimum = self.expected(case)
        began = time.process_time()
        result = self.searched(case)
        used = time.process_time() - began
        per_unit = result.pipeline.ticks.per_unit
        yield from judge.result(
            result, None if optimum is None else optimum * per_unit, proof=used > self.proved
        )
        yield from rechecked(result, case["more"])


class Placements(Choice):
    """The search over placements, against every placement that uses all devices."""

    name = "placements"
    goal = 1500

    def draw(self, rng: Random) -> Case:
        """Draw stages by an explicit list, mostly on devices that differ."""
        options = draw_options(rng, short=0.1)
        fused, mixed = options["backward_kind"] == "whole", rng.random() < 0.3
        if mixed:
            options["backward_kind"], fused = "mixed", False
        while True:
            fields = pipelines.draw(
                rng, ops=9, fused=fused, devices=(2, 2, 2, 3), routes=(1,), free=mixed
            )
            if isinstance(fields.get("placement"), list) or "chunks" not in fields:
                break
        fields.setdefault("placement", None)
        if not isinstance(fields["placement"], list):
            fields["placement"] = list(range(fields["stages"]))
        return {"pipeline": fields, "options": options, "more": rng.choice(MORE)}

    def configurations(self, case: Case) -> Iterator[Pipeline]:
        """Every placement, within the limits of the one that is given."""
        pipeline = pipelines.pipeline_of(case)
        pipeline = replace(pipeline, mem_limit=pipeline.limits)
        for hosts in placements(pipeline.num_devices, pipeline.num_stages):
            yield replace(pipeline, placement=hosts)

    def searched(self, case: Case) -> Result:
        """Search over placements."""
        return ppopt.solve(
            pipelines.pipeline_of(case), placement="search", workers=1, **case["options"]
        )


class Layers(Choice):
    """Models in layers: partitions that are given, and the search over all of them."""

    name = "layers"
    goal = 3000
    partitions: tuple[str, ...] = (*layers.FIXED, SEARCH, SEARCH)
    recompute: tuple[str | None, ...] = (None, None, "none", "full")
    more_layers = 3
    ops = 12

    def draw(self, rng: Random) -> Case:
        """Draw layers, how they are cut, and how they are searched."""
        options = draw_options(rng, short=0.1)
        options["backward_kind"] = rng.choice(("split", "whole", "mixed"))
        fields = layers.draw(
            rng,
            ops=9 if options["backward_kind"] == "mixed" else self.ops,
            partitions=self.partitions,
            recompute=self.recompute,
            more_layers=self.more_layers,
        )
        return {"pipeline": fields, "options": options, "more": rng.choice(MORE)}

    def configurations(self, case: Case) -> Iterator[Pipeline]:
        """Every partition and every choice of recompute that the case leaves open."""
        fields = case["pipeline"]
        return layers.spelled_out(fields, self._counts(fields), layers.choices(fields))

    def _counts(self, fields: dict[str, Any]) -> list[layers.Counts]:
        stages, model = len(layers.hosts_of(fields)), fields["model"]
        if fields["partition"] == SEARCH:
            return list(partitions(len(model), stages))
        if fields["partition"] == "even":
            return [layers.even(model, stages)]
        return [Pipeline(**fields).counts]

    def check(self, case: Case) -> Iterator[Finding]:
        """Look at the partition itself, then search."""
        yield from self._partition(case["pipeline"])
        yield from super().check(case)

    def _partition(self, fields: dict[str, Any]) -> Iterator[Finding]:
        counts, rule = Pipeline(**fields).counts, fields["partition"]
        model, stages = fields["model"], len(counts)
        if isinstance(rule, list) and list(counts) != rule:
            yield Finding("wrong-counts", f"{counts} for {rule}")
        if isinstance(rule, str) and "|" in rule:
            read = tuple(_letters(stage) for stage in rule.split("|"))
            if counts != read:
                yield Finding("wrong-layout", f"{counts} for {rule}")
        if rule == "even" and counts != layers.even(model, stages):
            yield Finding("not-even", f"{counts}")
        if rule == "balanced":
            chosen = layers.recomputed(fields)
            own = layers.bottleneck(model, counts, chosen)
            every = partitions(len(model), stages)
            shortest = min(layers.bottleneck(model, counts, chosen) for counts in every)
            if own != shortest:
                yield Finding("not-balanced", f"{counts}: largest {own}, least {shortest}")


def _letters(stage: str) -> int:
    """Layers that a stage of a layout names, with at most one repeat of one letter."""
    before, star, after = stage.partition("*")
    if not star:
        return len(stage)
    digits = len(after) - len(after.lstrip("0123456789"))
    return len(before) - 1 + int(after[:digits]) + len(after) - digits


class Phases(Layers):
    """Layers with phases: partitions and orders with pairs, against every one of both."""

    name = "phases"
    goal = 500
    more_layers = 2

    def draw(self, rng: Random) -> Case:
        """Draw layers with phases on a few operations, searched for the makespan."""
        case = super().draw(rng)
        fields = {key: value for key, value in case["pipeline"].items() if key != "first_backward"}
        fields["model"] = [layers.with_phases(rng, layer) for layer in fields["model"]]
        options = case["options"] | {"objective": "makespan"}
        return case | {"pipeline": fields, "options": options}

    def optimum(self, pipeline: Pipeline, case: Case) -> int | None:
        """Least makespan in ticks, by every order of every device."""
        kind = BackwardKind(case["options"]["backward_kind"])
        operations = Problem(pipeline, Objective.MAKESPAN, kind).num_operations
        if operations > MOST_IN_ORDERS * min(pipeline.num_devices, 2):
            raise SkippedError("too many operations for an oracle that writes down every order")
        fused = {BackwardKind.SPLIT: False, BackwardKind.WHOLE: True, BackwardKind.MIXED: None}
        return exhaustive_pairs.best(pipeline, fused=fused[kind]).makespan


class Recompute(Layers):
    """The search over recompute, of one partition or all, against every choice of layers."""

    name = "recompute"
    goal = 1500
    partitions = (*layers.FIXED, SEARCH)
    recompute = ("search",)
    more_layers = 1
    ops = 9


class Compositions(Layers):
    """Placements searched together with partitions, recompute and chunks, within limits."""

    name = "compositions"
    goal = 300
    tries = 60

    def draw(self, rng: Random) -> Case:
        """Draw a model whose placement is searched, mostly with more that is."""
        options = draw_options(rng, short=0.1)
        chunks = rng.choice((1, 1, 2))
        batches = rng.randint(1, 2) if chunks == 1 else 1
        fields = layers.draw_stated(
            rng, devices=2, stages=2 * chunks, more_layers=2 - chunks, batches=batches
        )
        inner = sum(layer["role"] == "decoder" for layer in fields["model"])
        rules = ("balanced", SEARCH, *(["even"] if inner >= 2 * chunks else ()))
        fields |= {
            "chunks": chunks,
            "placement": SEARCH,
            "partition": rng.choice(rules),
            "recompute": rng.choice((None, "full", SEARCH, SEARCH)),
        }
        return {"pipeline": fields, "options": options, "more": rng.choice(MORE)}

    def configurations(self, case: Case) -> Iterator[Pipeline]:
        """Every placement that uses all devices, with every partition and choice of recompute."""
        fields = dict(case["pipeline"])
        devices = fields["stages"]
        stages = devices * fields.pop("chunks")
        for hosts in placements(devices, stages):
            placed = fields | {"stages": stages, "placement": list(hosts)}
            yield from super().configurations(case | {"pipeline": placed})
