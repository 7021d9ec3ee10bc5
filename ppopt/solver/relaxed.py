"""Lower bounds from few devices: the relaxed models solved, most promising devices first."""

from __future__ import annotations

from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.solver import cpsat, model
from ppopt.solver.bounds import Bound
from ppopt.solver.incumbent import Problem


def bound_of(
    problem: Problem, devices: tuple[int, ...], known: Bound, value: int, limits: cpsat.Limits
) -> Bound:
    """Raise a known bound by what `devices` alone need, up to the value of a known schedule.

    A search not run to its end still gives its best bound, never its incumbent.
    """
    relaxed = model.build(
        problem.pipeline,
        problem.objective,
        fused=problem.fused,
        horizon=value,
        bound=known.value,
        devices=devices,
    )
    outcome = cpsat.search(relaxed, limits, lambda _value, _bound: None)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.infeasible:
        raise AssertionError(f"the relaxation to devices {devices} lost a known schedule")
    if outcome.bound <= known.value:
        return known
    names = " and ".join(map(str, devices))
    alone = f"device {names} alone needs" if len(devices) == 1 else f"devices {names} alone need"
    return Bound(
        outcome.bound,
        f"{alone} that long, whatever the others do: their operations, memory limits and the "
        "delays through all other stages already take it (solved by CP-SAT)",
    )


def singles(pipeline: Pipeline) -> list[tuple[int, ...]]:
    """Every device alone: the busiest, the first and the last before the others."""
    ticks = pipeline.ticks
    work = [
        sum(
            ticks.durations[kind][stage]
            for hosted in pipeline.hosted
            for stage in hosted[device]
            for kind in (OpKind.F, OpKind.BW)
        )
        for device in range(pipeline.num_devices)
    ]
    ranked = sorted(range(pipeline.num_devices), key=lambda device: (-work[device], device))
    first = dict.fromkeys((ranked[0], 0, pipeline.num_devices - 1, *ranked))
    return [(device,) for device in first]


def spread(pipeline: Pipeline, count: int) -> list[tuple[int, ...]]:
    """Sets of `count` devices evenly spaced along the pipeline, from the first and the second.

    Where memory is tight, devices hold each other up: a few of them, far apart, often need as
    long as all together.
    """
    devices = pipeline.num_devices
    if not 1 < count < devices:
        return []
    step = devices / count
    return list(
        dict.fromkeys(
            tuple(int(shift + step * place) % devices for place in range(count))
            for shift in (0, int(step) // 2)
        )
    )
