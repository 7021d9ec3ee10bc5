"""Least makespan or device span of a tiny pipeline, by exhaustive search: a second opinion.

Mixed backwards: the least over all choices, of every stage and microbatch, of split or whole.

Shares nothing with the package but the problem itself: no solver, no timing, no list of
constraints. The semantics are written out again below.

Best-first search over prefixes of schedules, operations added in order of their starts. A
prefix is a node: the clock (start of the operation added last), when each device is free, how
far each microbatch is and when its next operation may start. Later operations start at the
clock or after. Three facts keep it exact:

* Given the order on every device and the first start of every device, earliest starts are
  best, for both objectives. So an operation starts at max(clock, device free, data there), and
  later only where waiting can pay: a device's first operation under device span, and a B of no
  length that allocates memory (below).
* Memory counts at the end of an instant: ends before starts, and an operation of no length has
  both. Several such operations may share an instant, in any order that the data flow has, so
  a device may be over its limit in between ("over") as long as nothing else happens until the
  instant has brought it back. It may even pay to delay a B of no length that allocates memory until
  something of no length behind it can give memory back at the same instant; that instant is
  then one at which a device falls free or data arrive.
* A node with the same operations done as another, and nothing later in it, is no worse.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import combinations_with_replacement, count, product
from operator import add, gt, le
from typing import Literal, NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from tests.oracles.whole_backward import bw_allocates

Goal = Literal["makespan", "device-span"]
Ints = tuple[int, ...]


class Step(NamedTuple):
    """One operation of every microbatch of a route."""

    device: int
    duration: int
    allocates: int
    """Memory allocated at the start."""
    frees: int
    """Memory freed at the end."""
    lag: int
    """p2p time to the next step of the chain."""

    @property
    def change(self) -> int:
        """Signed change of memory."""
        return self.allocates - self.frees


class Problem(NamedTuple):
    """A pipeline as chains of steps: F of stages 0..S-1, then B (or BW) of stages S-1..0."""

    chains: tuple[tuple[Step, ...], ...]
    """Per group: the microbatches of one route whose backwards are split at the same stages."""
    weights: tuple[tuple[Step | None, ...], ...]
    """W per group and stage; None where the backward is whole (BW)."""
    batches: tuple[int, ...]
    """Microbatches per group."""
    headroom: Ints | None
    """Limit less static memory, per device."""
    to_device: tuple[tuple[Ints, ...], ...]
    """Per group and device, for a microbatch whose next step is k: time from the start of k to
    the earliest start on the device; -1 where it will not come again."""
    to_end: tuple[tuple[Ints, ...], ...]
    """The same, to the earliest end of its last operation on the device."""
    tails: tuple[Ints, ...]
    """Least time from the end of a microbatch's last chain operation on one device to that of
    its last operation on another, per pair; -1 where there need be none."""


class Batch(NamedTuple):
    """How far one microbatch is."""

    route: int
    """Its group."""
    step: int
    """Position of its next operation in the chain."""
    pending: int
    """Bit s: B of stage s is done and W is not."""
    ready: int
    """Earliest start of its next chain operation, at least the clock and the device's free time."""


class Node(NamedTuple):
    """A prefix of a schedule; tuples of numbers have one entry per device."""

    clock: int
    free: Ints
    first: Ints
    """Start of the device's first operation; 0 throughout for makespan; -1: none yet."""
    level: Ints
    """Memory above static, every decrease of the prefix counted."""
    work: Ints
    """Time of the operations still to come."""
    chain_work: Ints
    """The same, W left out."""
    left: Ints
    """Number of the operations still to come."""
    batches: tuple[Batch, ...]


def best(pipeline: Pipeline, *, fused: bool, objective: Goal, symmetry: bool = False) -> int | None:
    """Least value over all schedules that start operations at whole ticks, in ticks.

    None where no schedule meets the memory limits. `symmetry` keeps only schedules in which the
    k-th operation of a kind, stage and route is that of its k-th microbatch.
    """
    problem = problem_of(pipeline, fused)
    makespan = Search(problem, "makespan", symmetry).run()
    if objective == "makespan" or makespan is None:
        return makespan
    shorter = Search(problem, "device-span", symmetry, makespan).run()
    return makespan if shorter is None else shorter


def best_mixed(pipeline: Pipeline, *, objective: Goal) -> int | None:
    """Least value over all schedules in which every backward is split or whole: all choices."""
    share = pipeline.batches // pipeline.routes
    patterns = list(product((False, True), repeat=pipeline.num_stages))
    each = list(combinations_with_replacement(patterns, share))
    problems = [
        problem_of_groups(
            pipeline,
            [
                Group(route, pattern, many)
                for route, chosen in enumerate(choice)
                for pattern, many in sorted(Counter(chosen).items())
            ],
        )
        for choice in product(each, repeat=pipeline.routes)
    ]
    value: int | None = None
    for goal in dict.fromkeys(("makespan", objective)):
        for problem in problems:
            best = Search(problem, goal, False, value).run()
            value = value if best is None else best
    return value


class Group(NamedTuple):
    """Microbatches of one route whose backwards are split at the same stages."""

    route: int
    split: tuple[bool, ...]
    """Per stage."""
    batches: int


def problem_of(pipeline: Pipeline, fused: bool) -> Problem:
    """Write a pipeline whose backwards are all split or all whole as chains of steps."""
    share = pipeline.batches // pipeline.routes
    split = (not fused,) * pipeline.num_stages
    return problem_of_groups(
        pipeline, [Group(route, split, share) for route in range(pipeline.routes)]
    )


def problem_of_groups(pipeline: Pipeline, groups: list[Group]) -> Problem:
    """Write a pipeline as chains of steps, one per group of microbatches."""
    ticks = pipeline.ticks
    routes = range(len(groups))
    chains = tuple(_chain(pipeline, group) for group in groups)
    weights = tuple(_weights(pipeline, group) for group in groups)
    headroom = None
    if ticks.limits is not None:
        headroom = tuple(
            limit - static for limit, static in zip(ticks.limits, ticks.static, strict=True)
        )
    devices = range(pipeline.num_devices)
    reach = [[_reach(chains[r], weights[r], d) for d in devices] for r in routes]
    arrive = tuple(tuple(arrive for arrive, _ in rows) for rows in reach)
    leave = tuple(tuple(leave for _, leave in rows) for rows in reach)
    tails = tuple(
        tuple(min(_tail(chains[r], leave[r][target], source) for r in routes) for target in devices)
        for source in devices
    )
    batches = tuple(group.batches for group in groups)
    return Problem(chains, weights, batches, headroom, arrive, leave, tails)


def _tail(chain: tuple[Step, ...], leave: Ints, device: int) -> int:
    last = max(position for position, step in enumerate(chain) if step.device == device)
    return -1 if leave[last] < 0 else leave[last] - chain[last].duration


def _chain(pipeline: Pipeline, group: Group) -> tuple[Step, ...]:
    ticks, hosts = pipeline.ticks, pipeline.hosts[group.route]
    stages = range(len(hosts))
    kinds = [(OpKind.F, s) for s in stages]
    first = _forward_only(pipeline)
    kinds += [(OpKind.B if group.split[s] else OpKind.BW, s) for s in reversed(stages[first:])]
    places = [hosts[stage] for _, stage in kinds]
    lags = [*ticks.down[group.route], 0, *reversed(ticks.up[group.route][first:])]
    lags = [*lags[: len(kinds) - 1], 0]
    return tuple(
        Step(device, ticks.durations[kind][stage], *_memory(pipeline, kind, stage), lag)
        for (kind, stage), device, lag in zip(kinds, places, lags, strict=True)
    )


def _forward_only(pipeline: Pipeline) -> int:
    """Stages that run no backward, whose chain of a microbatch ends before it comes back there."""
    frozen = [*pipeline.frozen_stages, False]
    return frozen.index(False)


def _weights(pipeline: Pipeline, group: Group) -> tuple[Step | None, ...]:
    return tuple(
        Step(device, pipeline.ticks.durations[OpKind.W][s], *_memory(pipeline, OpKind.W, s), 0)
        if group.split[s] and not pipeline.frozen_stages[s]
        else None
        for s, device in enumerate(pipeline.hosts[group.route])
    )


def _retained(pipeline: Pipeline, stage: int) -> int:
    """Activation that F keeps on the device."""
    costs = pipeline.ticks.costs
    return costs.kept[stage] - costs.offload_memory[stage]


def _memory(pipeline: Pipeline, kind: OpKind, stage: int) -> tuple[int, int]:
    """What an operation takes and gives: F what it keeps, B what is missing, BW one layer of it."""
    if kind is OpKind.BW:
        allocated = bw_allocates(pipeline, stage) + pipeline.ticks.costs.offload_memory[stage]
        return allocated, _retained(pipeline, stage) + allocated
    whole, at_b = pipeline.ticks.costs.activation[stage], pipeline.ticks.costs.memory_b[stage]
    retained, own = _retained(pipeline, stage), pipeline.ticks.workspace[kind][stage]
    allocates, frees = {
        OpKind.F: (retained, 0),
        OpKind.B: (whole - retained + max(at_b, 0), max(-at_b, 0)),
        OpKind.W: (0, whole + at_b),
    }[kind]
    return allocates + own, frees + own


def _reach(
    chain: tuple[Step, ...], weights: tuple[Step | None, ...], device: int
) -> tuple[Ints, Ints]:
    """Least times from the start of each step to the first start and last end on a device."""
    arrive, leave = [-1], [-1]
    for position in reversed(range(len(chain))):
        step = chain[position]
        beyond = step.duration + step.lag
        first = -1 if arrive[-1] < 0 else arrive[-1] + beyond
        last = -1 if leave[-1] < 0 else leave[-1] + beyond
        if step.device == device:
            stage = 2 * len(weights) - 1 - position
            weight = weights[stage] if stage < len(weights) else None
            after = 0 if weight is None else weight.duration
            first, last = 0, max(last, step.duration + after)
        arrive.append(first)
        leave.append(last)
    return tuple(reversed(arrive)), tuple(reversed(leave))


def _coming(to_device: tuple[Ints, ...], to_end: tuple[Ints, ...]) -> list[list[Ints]]:
    """Per next step of a microbatch: device, time to its start there, time to its end there."""
    steps = range(len(to_device[0]))
    return [
        [
            (device, first[step], last[step])
            for device, (first, last) in enumerate(zip(to_device, to_end, strict=True))
            if first[step] >= 0
        ]
        for step in steps
    ]


class Search:
    """One search for a least value."""

    def __init__(
        self, problem: Problem, objective: Goal, symmetry: bool, cutoff: int | None = None
    ) -> None:
        self.problem = problem
        self.objective = objective
        self.symmetry = symmetry
        self.cutoff = self._one_by_one() + 1 if cutoff is None else cutoff
        """Only values below it are of interest."""
        self.fronts: dict[object, list[Ints]] = defaultdict(list)
        """Per set of operations done: the nodes that no other betters, as numbers."""
        self.coming = [
            _coming(*times) for times in zip(problem.to_device, problem.to_end, strict=True)
        ]
        """Per group and next step: devices that a microbatch still comes to, with both times."""
        self.tails = [
            [(device, tail) for device, tail in enumerate(tails) if tail >= 0]
            for tails in problem.tails
        ]
        """Per device: the tails that there are."""

    def run(self) -> int | None:
        """Expand the node of least bound until one is complete; None: no value below `cutoff`."""
        counter = count()
        heap: list[tuple[int, int, int, Node, Ints]] = [(0, 0, next(counter), self._root(), ())]
        while heap:
            bound, _, _, node, figures = heappop(heap)
            if not any(node.left):
                return bound
            if figures and figures not in self.fronts[self._key(node)]:
                continue
            for child in self._children(node):
                bound = self._bound(child)
                if bound < self.cutoff and (figures := self._keep(child)):
                    heappush(heap, (bound, sum(child.left), next(counter), child, figures))
        return None

    def _one_by_one(self) -> int:
        """Makespan where nothing overlaps: no best value is above it."""
        return sum(
            many * sum(step.duration + step.lag for step in (*chain, *filter(None, weights)))
            for chain, weights, many in zip(
                self.problem.chains, self.problem.weights, self.problem.batches, strict=True
            )
        )

    def _root(self) -> Node:
        devices = range(len(self.problem.to_device[0]))
        work, chain_work, left = ([0] * len(devices) for _ in range(3))
        batches: list[Batch] = []
        for route, many in enumerate(self.problem.batches):
            batches += [Batch(route, 0, 0, 0)] * many
            for step in (*self.problem.chains[route], *filter(None, self.problem.weights[route])):
                work[step.device] += many * step.duration
                left[step.device] += many
            for step in self.problem.chains[route]:
                chain_work[step.device] += many * step.duration
        zeros = tuple(0 for _ in devices)
        first = zeros if self.objective == "makespan" else tuple(-1 for _ in devices)
        counts = tuple(work), tuple(chain_work), tuple(left)
        return Node(0, zeros, first, zeros, *counts, tuple(batches))

    def _children(self, node: Node) -> Iterator[Node]:
        over = self._over(node)
        for index, batch in enumerate(node.batches):
            if not self.symmetry and index and batch == node.batches[index - 1]:
                continue
            for step, after in self._next_steps(node, index):
                for start in self._starts(
                    node, step, batch.ready if after.step > batch.step else 0
                ):
                    if over and start > node.clock:
                        break
                    if self._fits(node, step):
                        yield self._add(node, index, step, after, start)

    def _next_steps(self, node: Node, index: int) -> Iterator[tuple[Step, Batch]]:
        """Operations of a microbatch that may come next, with the microbatch after each."""
        batch = node.batches[index]
        chain, weights = self.problem.chains[batch.route], self.problem.weights[batch.route]
        ahead = self._ahead(node, index)
        position = batch.step
        if position < len(chain) and (ahead is None or ahead.step > position):
            stage = 2 * len(weights) - 1 - position
            split = stage < len(weights) and weights[stage] is not None
            pending = batch.pending | (1 << stage) if split else batch.pending
            yield chain[position], batch._replace(step=position + 1, pending=pending)
        for stage, weight in enumerate(weights):
            if (
                weight is not None
                and batch.pending >> stage & 1
                and (
                    ahead is None
                    or (ahead.step >= 2 * len(weights) - stage and not ahead.pending >> stage & 1)
                )
            ):
                yield weight, batch._replace(pending=batch.pending & ~(1 << stage))

    def _ahead(self, node: Node, index: int) -> Batch | None:
        """The microbatch that must go first, where order is kept."""
        if not self.symmetry or not index:
            return None
        ahead = node.batches[index - 1]
        return ahead if ahead.route == node.batches[index].route else None

    def _starts(self, node: Node, step: Step, ready: int) -> list[int]:
        """Starts that may lead to a best schedule, ascending."""
        earliest = max(node.clock, node.free[step.device], ready)
        if node.first[step.device] < 0 and max(node.first) >= 0:
            begun = min(first for first in node.first if first >= 0)
            return list(range(earliest, begun + self._apart() + 1))
        if self.problem.headroom is None or step.duration or step.change <= 0:
            return [earliest]
        events = {*node.free, *(batch.ready for batch in node.batches)}
        return [earliest, *sorted(event for event in events if event > earliest)]

    def _apart(self) -> int:
        """Most ticks between the first starts of two devices that are worth trying.

        Below the cutoff where each device has a stage with F and B, for these windows meet. Where
        stages run no backward, between two windows there is nothing but transfers.
        """
        problem = self.problem
        if all(
            len(chain) == 2 * len(weights)
            for chain, weights in zip(problem.chains, problem.weights, strict=True)
        ):
            return self.cutoff
        return len(problem.to_device[0]) * self.cutoff + self._one_by_one()

    def _fits(self, node: Node, step: Step) -> bool:
        """Whether memory allows it; at no length, the end of the instant decides (`_over`)."""
        if self.problem.headroom is None or not step.duration:
            return True
        return node.level[step.device] + step.allocates <= self.problem.headroom[step.device]

    def _over(self, node: Node) -> bool:
        headroom = self.problem.headroom
        return headroom is not None and any(map(gt, node.level, headroom))

    def _add(self, node: Node, index: int, step: Step, after: Batch, start: int) -> Node:
        """The node with one more operation."""
        device = step.device
        end = start + step.duration
        chain_work = node.chain_work
        if after.step > node.batches[index].step:
            after = Batch(after.route, after.step, after.pending, end + step.lag)
            chain_work = _put(chain_work, device, chain_work[device] - step.duration)
        left = _put(node.left, device, node.left[device] - 1)
        times = zip(_put(node.free, device, end), left, strict=True)
        free = tuple([start if more and time < start else time for time, more in times])
        batches = [
            self._settle(after if position == index else batch, start, free)
            for position, batch in enumerate(node.batches)
        ]
        return Node(
            start,
            free,
            node.first if node.first[device] >= 0 else _put(node.first, device, start),
            _put(node.level, device, node.level[device] + step.change),
            _put(node.work, device, node.work[device] - step.duration),
            chain_work,
            left,
            tuple(batches if self.symmetry else sorted(batches)),
        )

    def _settle(self, batch: Batch, clock: int, free: Ints) -> Batch:
        """Raise `ready` to what it must be: no sooner than the clock, and the device free."""
        route, step, pending, ready = batch
        chain = self.problem.chains[route]
        ready_at = 0 if step == len(chain) else max(ready, clock, free[chain[step].device])
        return batch if ready_at == ready else Batch(route, step, pending, ready_at)

    def _key(self, node: Node) -> object:
        done = tuple(batch[:3] for batch in node.batches)
        return (done, node.clock) if self._over(node) else done

    def _keep(self, node: Node) -> Ints:
        """Note a node and give its figures, the smaller the better; () where it is bettered."""
        figures = (
            node.clock,
            *node.free,
            *(-first for first in node.first),
            *(batch.ready for batch in node.batches),
        )
        front = self.fronts[self._key(node)]
        if any(all(map(le, known, figures)) for known in front):
            return ()
        front[:] = [known for known in front if not all(map(le, figures, known))]
        front.append(figures)
        return figures

    def _bound(self, node: Node) -> int:
        """No completion of the node has a smaller value; exact where nothing is left."""
        ends = list(map(add, node.free, node.work))
        spans = list(node.work)
        arrivals: list[int | None] = [None] * len(ends)
        for route, step, _, ready in node.batches:
            for device, first, last in self.coming[route][step]:
                arrival = arrivals[device]
                if arrival is None or ready + first < arrival:
                    arrivals[device] = ready + first
                if ready + last > ends[device]:  # noqa: PLR1730  faster than max
                    ends[device] = ready + last
                if last - first > spans[device]:  # noqa: PLR1730  faster than max
                    spans[device] = last - first
        for device, arrival in enumerate(arrivals):
            if arrival is None:
                continue
            done = max(arrival, node.free[device]) + node.chain_work[device]
            for target, tail in self.tails[device]:
                if done + tail > ends[target]:  # noqa: PLR1730  faster than max
                    ends[target] = done + tail
        return max(
            span if first < 0 else end - first
            for span, end, first in zip(spans, ends, node.first, strict=True)
        )


def _put(values: Ints, index: int, value: int) -> Ints:
    return (*values[:index], value, *values[index + 1 :])
