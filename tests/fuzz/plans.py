"""Plans against every configuration of theirs: false proofs, values, and the gain they state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from ppopt.schedule.origin import SEARCHED
from tests.fuzz import configs, layers
from tests.fuzz.category import Case, Category, Finding
from tests.fuzz.searches import optimum
from tests.oracles.configurations import partitions

LOSS = Fraction(2, 100)
"""Largest loss against the best configuration that a plan of strategies may have."""
FULL_TIME = "10"
"""Seconds of a plan; the tiny ones here end by proof, or when nothing is left to try."""


class Configuration(NamedTuple):
    """A row of a plan."""

    placement: str
    chunks: int
    recompute: str
    strategy: str


Best = Mapping[Configuration, Fraction | None]
"""The least value of every configuration; None if it has no schedule within the limits."""


class Plans(Category):
    """Plans of any schedule, against exhaustive search of every configuration."""

    name = "plans"
    goal = 60
    tries = 60
    runtime = "any"

    def draw(self, rng: Random) -> Case:
        """Draw a model of few operations: the oracle searches every configuration."""
        chunks = rng.choice(("1", "1", "2", "1,2"))
        batches = rng.randint(1, 2) if chunks == "1" else 1
        stages = 2 if chunks == "1" else 4
        fields = layers.draw_stated(rng, devices=2, stages=stages, more_layers=1, batches=batches)
        options = ["--chunks", chunks, "--backward", rng.choice(("split", "whole", "mixed"))]
        recompute = rng.choice((None, "none", "full", "search", "none,full"))
        options += [] if recompute is None else ["--recompute", recompute]
        return {"pipeline": fields, "words": options}

    def check(self, case: Case) -> Iterator[Finding]:
        """Plan, and compare every row and the whole with the least values."""
        command = ["plan", "--runtime", self.runtime, "--time-limit", FULL_TIME, "--workers", "1"]
        plan = configs.answer([*command, *case["words"]], case["pipeline"])
        best = {
            configuration: min(self.values(case, configuration), default=None)
            for configuration in map(_configuration, plan["rows"])
        }
        known = [value for value in best.values() if value is not None]
        yield from configs.ended(plan, best=min(known, default=None))
        for row in plan["rows"]:
            yield from self._row(row, best)
        yield from self._loss(plan, known)
        yield from gain(case["pipeline"], plan)

    def _row(self, row: Any, best: Best) -> Iterator[Finding]:
        configuration = _configuration(row)
        for kind, description in configs.ended(row, best=best[configuration]):
            yield Finding(f"row-{kind}", f"{', '.join(map(str, configuration))}: {description}")

    def _loss(self, plan: Any, known: list[Fraction]) -> Iterator[Finding]:
        value = configs.stated(plan["value"])
        if known and value is None and plan["status"] != "infeasible":
            yield Finding("nothing-found", f"{plan['status']}, where {min(known)} is possible")
        if value is not None and known and value > (1 + LOSS) * min(known):
            yield Finding("slower", f"the plan takes {value}, another configuration {min(known)}")

    def values(self, case: Case, configuration: Configuration) -> Iterator[Fraction]:
        """The least value of every partition and choice of recompute of a configuration."""
        fields = case["pipeline"] | {"placement": configuration.placement}
        options = {"objective": "makespan", "backward_kind": case["words"][3]}
        stages = len(layers.hosts_of(fields))
        cuts = partitions(len(fields["model"]), stages)
        chosen = configs.chosen(fields, configuration.recompute)
        for pipeline in layers.spelled_out(fields, cuts, chosen):
            best = optimum(pipeline, {"options": options})
            if best is not None:
                yield Fraction(best, pipeline.ticks.per_unit)


class Megatron(Plans):
    """Plans for Megatron-LM, against both of its strategies on every partition."""

    name = "megatron"
    goal = 60
    runtime = "megatron"

    def draw(self, rng: Random) -> Case:
        """Draw a model that Megatron-LM takes: its ends recompute in no case."""
        devices = rng.choice((2, 2, 3))
        batches = devices * rng.randint(1, 3)
        stages = 2 * devices
        fields = layers.draw_stated(
            rng, devices=devices, stages=stages, more_layers=2, batches=batches
        )
        for layer in fields["model"]:
            layer.pop("recompute", None)
        options = ["--placement", rng.choice(("linear", "interleaved", "linear,interleaved"))]
        options += rng.choice(([], [], ["--recompute", rng.choice(("none", "full", "none,full"))]))
        return {"pipeline": fields, "words": options}

    def values(self, case: Case, configuration: Configuration) -> Iterator[Fraction]:
        """Values of the strategy within the limits on every partition."""
        for schedule in configs.within(_every(case["pipeline"], configuration)):
            yield configs.value(schedule)


def _configuration(row: Any) -> Configuration:
    return Configuration(*(row[name] for name in Configuration._fields))


def _every(fields: dict[str, Any], configuration: Configuration) -> Iterator[Any]:
    """A strategy on every partition, with every choice of recompute."""
    for counts in partitions(len(fields["model"]), configuration.chunks * fields["stages"]):
        for which in configs.chosen(fields, configuration.recompute):
            yield configs.schedule(fields, configuration.strategy, list(counts), which)


def gain(fields: dict[str, Any], plan: Any) -> Iterator[Finding]:
    """Compare the baselines over which a plan states its gain with what `eval` says of them.

    None may be slower than a row of the plan, or than the strategy within the limits on the
    balanced partition, with a recompute that the plan may choose.
    """
    asked = set(plan["space"]["recompute"])
    allowed = {"none", "full"} & asked if "search" not in asked else {"none", "full"}
    value = configs.stated(plan["value"])
    for baseline in plan["baselines"]:
        configuration = _configuration(baseline)
        own, named = configs.exact(baseline["value"]), ", ".join(map(str, configuration))
        if value and abs(Fraction(baseline["speedup"]) * value - own) > Fraction(1, 10**6):
            yield Finding("wrong-speedup", f"{named}: {baseline['speedup']} of {own} to {value}")
        if baseline["recompute"] in ("none", "full"):
            (which,) = configs.chosen(fields, baseline["recompute"])
            schedule = configs.schedule(
                fields, configuration.strategy, baseline["partition"], which
            )
            if schedule is None or configs.value(schedule) != own or not schedule.fits_limits:
                yield Finding("wrong-baseline", f"{named}: it states {own}, eval gives {schedule}")
        for row in plan["rows"]:
            same = _configuration(row)._replace(recompute="") == configuration._replace(
                recompute=""
            )
            better = configs.stated(row["value"])
            if same and row["strategy"] != SEARCHED and better is not None and better < own:
                yield Finding("baseline-slower-than-row", f"{named}: {own}, a row has {better}")
        for recompute in sorted(allowed):
            (which,) = configs.chosen(fields, recompute)
            schedule = configs.schedule(fields, configuration.strategy, "balanced", which)
            if schedule is not None and schedule.fits_limits and configs.value(schedule) < own:
                message = (
                    f"{named}: {own}, recompute {recompute}, balanced: {configs.value(schedule)}"
                )
                yield Finding("baseline-slower-than-eval", message)
