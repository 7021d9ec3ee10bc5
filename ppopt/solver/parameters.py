"""Tuning constants of the search, per method.

They were tuned on 2 cores with CP-SAT 9.15, on `benchmarks.suite` unless a field says otherwise. A
search has them as one frozen value, so that a benchmark can vary a single constant.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import NamedTuple

from ppopt.schedule.list_scheduling import RuleStyle


class CpSatParams(NamedTuple):
    """CP-SAT settings of all methods."""

    proof_subsolvers: tuple[str, ...] = ("ordering", "ordering_quick_restart")
    """Subsolvers (of `cp_sat.cpsat`) that prove most models soonest: they decide the order of
    the operations of a device, by dynamic precedences."""
    schedule_subsolvers: tuple[str, ...] = ("no_lp", "quick_restart_no_lp")
    """CP-SAT's subsolvers that find a schedule of a given value soonest, if one exists."""
    linearization_level: int = 0
    """CP-SAT's `linearization_level`. The linear relaxation of no-overlap constraints is very weak,
    and solving it at every node uses nearly all of the time: the pipeline 28.3b p=4 m=16 K=3 is
    proved in 1 s without it, and not in 30 s with it."""
    max_pairs: int = 40_000
    """Largest number of candidate overlapped pairs of a model."""
    order_literals: int = 300
    """Largest number of order literals of a model (`cp_sat.order_literals`)."""
    order_literals_far_apart: int = 3000
    """Largest number of order literals if times are far apart."""
    far_apart: int = 10_000
    """Times are far apart if the horizon is more than this number of shortest operations."""
    poll_seconds: float = 0.2
    """Seconds between two checks of whether to stop."""


CP_SAT = CpSatParams()
"""Default CP-SAT settings."""


class ConstructionParams(NamedTuple):
    """The first schedules, within the time limit."""

    first_schedule: int = 1000
    """Number of operations from which the schedule of one microbatch at a time is built first."""
    building_plain: float = 2e-6
    """Estimated seconds per operation of the first rule, for plain pipelines. Each later rule is
    estimated by the time of the last one."""
    building: float = 6e-6
    """Estimated seconds per operation of the first rule, for other pipelines."""
    submitting: float = 1.5e-6
    """Seconds per operation to time and store a schedule."""
    grace: float = 0.5
    """Seconds by which rules and baselines may exceed the time limit."""
    first_rules: int = 16
    """Rules after which those of a kind of backward end if they are hopeless."""
    hopeless: float = 1.15
    """Rules are hopeless if the best one exceeds the best schedule of their kind by this factor: of
    deepseek-v3 (V) the first ones exceed a repaired ZBV by 60 %, and all 198 take 2.4 s."""


class PriorityRuleParams(NamedTuple):
    """Priority rules that list scheduling tries.

    The styles were tuned on half of the smaller instances of the core suite: among more candidates,
    this combination reaches the best schedules.
    """

    round_trip_styles: tuple[RuleStyle, ...] = (
        RuleStyle(True, 50, memory_first=True, prompt=True),
        RuleStyle(True, 99, prompt=True),
        RuleStyle(True, 50),
        RuleStyle(False, 99),
        RuleStyle(True, 99, memory_first=True, prompt=True),
    )
    """Styles with caps by the round trip until the first backward."""
    falling_styles: tuple[RuleStyle, ...] = (
        RuleStyle(False, 99),
        RuleStyle(True, 50, memory_first=True, prompt=True),
        RuleStyle(False, 0),
    )
    """Styles with caps that fall along the stages."""
    shared_memory_styles: tuple[RuleStyle, ...] = (
        RuleStyle(True, 0, memory_first=True),
        RuleStyle(False, 50, prompt=True),
        RuleStyle(True, 50),
        RuleStyle(False, 0, memory_first=True),
    )
    """Styles with caps that divide the memory of a device among its chunks."""
    max_share_steps: int = 16
    """Maximum number of steps between an equal share and all memory of a device for its first
    chunk; chosen by the total time of all rules."""


class PoolParams(NamedTuple):
    """Schedules from which local search starts."""

    schedules: int = 5
    """Justified schedules kept, of different values."""
    justified_operations: int = 100_000
    """Largest number of operations of all constructed schedules that are justified; at least two
    schedules are."""
    justifying_seconds: float = 1.5e-5
    """Seconds per operation to justify a schedule; its preparation takes the same time."""
    passes: int = 4
    """Largest number of justifications of a schedule that keeps improving."""
    first_steps: tuple[int, int] = (50, 500)
    """Minimum and maximum number of steps from each start in a first turn of local search; each
    turn has twice as many steps as the last."""
    first_operations: int = 1_000_000
    """Operations to place in these steps, within `first_steps`."""

    def steps(self, operations: int) -> int:
        """Number of steps from each start in a first turn, for schedules of so many operations."""
        min_steps, max_steps = self.first_steps
        return min(max(self.first_operations // operations, min_steps), max_steps)


class JustificationParams(NamedTuple):
    """Justified schedules, from which local search starts."""

    first: int = 3
    """Number of schedules that are justified before the rounds, for small problems."""
    first_max_operations: int = 1_000
    """Maximum number of operations of such a problem, for which justification is very fast."""
    seconds_for_all: float = 0.5
    """Seconds of a turn that justifies all schedules; a shorter one justifies a share of them."""


class CyclicParams(NamedTuple):
    """Cyclic schedules of a few microbatches per period."""

    sizes: tuple[int, ...] = (2, 4)
    """Numbers of microbatches per period, one after the other."""
    min_cycles: int = 4
    """Minimum number of cycles of the largest size in a run."""
    close: float = 1.004
    """Bisection of the period ends when its interval is within this factor."""
    fineness: int = 256
    """Minimum number of coarse units of time per microbatch of a period."""
    max_delay: int = 2
    """Longest time of a microbatch through the pipeline, as a multiple of all of its work."""
    efforts: tuple[float, ...] = (0.25, 2.0)
    """Largest numbers of deterministic units of CP-SAT for one period, one after the other, and
    with several workers half the largest numbers of seconds: most cycles need little."""
    overhead: float = 0.2
    """Overhead of a period besides CP-SAT, in deterministic units."""


class SteadyStateParams(NamedTuple):
    """Unrolling of the steady state of a short run to a long run.

    Tuned on runs of 256 to 1024 microbatches on 4 to 64 devices.
    """

    per_device: tuple[int, int] = (4, 8)
    """Minimum and maximum number of microbatches of the short run, per device."""
    operations: int = 24_000
    """Operations of the short run, within the numbers of `per_device`."""
    longer: int = 3
    """A run is long if it has at least this many times the microbatches of the short one."""
    share: float = 0.25
    """Share of the remaining time for the search of the short run, and again for its sections.
    Single-worker results must be reproducible, but a search that the clock ends is not. So with
    one worker only a short run that is proved optimal is used."""
    max_size: int = 24
    """Largest number of microbatches of a period."""
    regular: int = 8
    """Number of single periods that are rated."""
    trial: int = 100
    """Approximate number of additional microbatches for rating a section; at least three periods.
    """
    unrolled: int = 3
    """Number of sections, by rate, that are unrolled to the whole run."""
    looser: tuple[float, ...] = (1.0, 1.02)
    """Periods to try, as multiples of the period of the section: longer ones need less memory."""


class LocalSearchParams(NamedTuple):
    """Iterated local search over schedules."""

    temperature: float = 0.001
    """Largest share of the value by which a step may be worse."""
    patience: int = 60
    """Number of steps without improvement after which the search returns to the best schedule."""
    strengths: tuple[float, ...] = (0.5, 1, 2, 4, 8)
    """Sizes of a perturbation, in mean durations of operations."""
    stretches: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 2, 2, 2, 2)
    """Lengths of the perturbed time interval, as shares of the value."""
    step_seconds: float = 6e-6
    """Measured seconds of a step per operation: the work that one worker pays."""


class WindowParams(NamedTuple):
    """Large neighbourhood search by windows of time."""

    first_size: int = 16
    """Operations of the first window, per device. Windows grow to 15 to 25 in about five seconds,
    and a plan improves a schedule for a few seconds at a time."""
    min_size: int = 20
    """Operations of the smallest window that the size shrinks to."""
    smallest: float = 0.3
    """Smallest window, as a share of the present size."""
    growth: float = 1.1
    """Factor of the size after a window that was solved to its end."""
    shrinkage: float = 1.15
    """Divisor of the size after a window that was not, and brought no improvement."""
    draws: int = 10
    """Largest number of draws for a window that can improve the schedule."""
    guided: float = 0.75
    """Share of the windows that lie around an idle gap of a busy device."""
    fixed_modes: float = 0.4
    """Share of the windows of mixed problems in which every backward stays split or whole: they are
    larger when they are solved to their end (record 2026-11-28-improvement)."""
    effort: float = 0.1
    """Largest number of deterministic units of one window: about a second on a shared processor."""
    longest: float = 1.0
    """Largest number of seconds of one window, with several workers."""
    focus: tuple[str, ...] = ("ordering",)
    """Subsolver of `cp_sat.cpsat` for a window; empty: CP-SAT's own search. That solves only
    smaller windows to their end, and is worse with two chunks (record 2026-11-27-windows)."""
    overhead: float = 2e-5
    """Overhead of a window besides CP-SAT, and of drawing windows, in deterministic units per
    operation of the problem."""
    max_at_once: int = 8
    """Largest number of windows that are solved in parallel."""
    min_share: float = 0.25
    """Minimum share of a budget that is used after turns without improvement, on problems with a
    full model."""
    full_model_operations: int = 4_000
    """Largest number of operations of a problem with a full model."""


class RelaxationParams(NamedTuple):
    """Lower bounds from CP-SAT models of subsets of devices."""

    subset_sizes: tuple[int, ...] = (2, 3, 4, 8)
    """Sizes of the evenly spaced subsets of devices."""
    focuses: tuple[tuple[str, ...], ...] = (
        ("ordering", "ordering_quick_restart"),
        ("ordering", "ordering_quick_restart"),
        ("core", "objective_lb_search"),
        (),
    )
    """CP-SAT's subsolvers per minimising turn: each of them is ten times faster than the others
    on some of these models."""
    first: int = 4
    """Number of single devices that come before the larger subsets."""
    share: float = 0.5
    """Largest share of a budget for one relaxed model."""
    operation_seconds: float = 2e-4
    """Measured seconds to build a model, per operation of the subset."""
    cut_seconds: float = 2e-6
    """Measured seconds to build a model, per operation of the problem."""


class SubsetParams(NamedTuple):
    """Dynamic programming over subsets of devices."""

    spaced_sizes: tuple[int, ...] = (2, 3, 4, 5)
    """Sizes of the evenly spaced subsets. If memory is tight, their devices delay each other more
    than neighbours do, and their programs have fewer states."""
    widening: int = 16
    """Factor of the states per vector of counts, which is 1 at first, for single devices. States of
    equal counts are merged: of deepseek-v3 (V, 80 GiB) each device then needs about a second."""
    max_width: int = 4096
    """Maximum number of states per vector of counts before no more states are merged."""
    max_remaining_share: float = 1 / 3
    """A layered DP over all values below the incumbent is abandoned if the estimate for its
    remaining layers, at the present width, exceeds this share of the whole search."""
    max_entries: int = 40_000_000
    """Largest number of matrix entries of a layer."""


class DynamicProgramParams(NamedTuple):
    """Dynamic programming over all devices."""

    preparing_seconds: float = 4e-6
    """Measured seconds to prepare a layered DP, per operation of the problem."""
    state_seconds: float = 7e-6
    """Measured seconds per state."""
    layer_overhead_seconds: float = 1.5e-3
    """Measured seconds per layer besides its states."""
    first_reach: float = 0.12
    """In the first turn, the DP over all devices may overrun its budget while its remaining layers,
    at the present width, take less than this share of the whole search."""
    reach: float = 0.5
    """Value of `first_reach` in later turns."""
    max_rows: int = 600
    """Largest number of rows of a state."""
    max_flags: int = 30
    """Largest number of classes that share memory: each has a bit of a 32-bit number."""
    max_entries: int = 40_000_000
    """Largest number of matrix entries of a layer."""


class FullModelParams(NamedTuple):
    """The CP-SAT model of all devices."""

    operations: int = 600
    """Largest number of operations of a plain problem that the full model minimises."""
    max_operations: int = 4_000
    """Largest number of operations for which a CP-SAT model of all devices is built."""
    focuses: tuple[tuple[str, ...], ...] = (
        ("ordering",),
        ("ordering_quick_restart",),
        ("ordering",),
    )
    """Subsolvers per turn, besides large neighbourhoods: the first proves most problems, and the
    other one those on which the first is slow."""
    presolve_seconds: float = 0.0005
    """Seconds per operation by which presolve may overrun the time limit of CP-SAT."""
    steps: int = 100
    """Number of steps into which a search divides its initial gap."""
    recheck_seconds: float = 10.0
    """Largest number of seconds to confirm infeasibility by the re-checker."""


class FeasibilityParams(NamedTuple):
    """CP-SAT feasibility questions at chosen objective values."""

    operations: int = 600
    """Problems have more operations than this; smaller ones have the full model."""
    max_operations: int = 4_000
    """Largest number of operations for which a CP-SAT model of all devices is built."""
    close: int = 100
    """The bound may be met if this multiple of the gap is at most the value."""
    per_device: int = 3
    """Microbatches per device of the shorter run: one each for warm-up, middle and cool-down."""
    share: float = 0.5
    """Largest share of a budget for one target, except for a bound that may be met."""


class Share(NamedTuple):
    """Time of a method in a round, as a multiple of the unit of the round."""

    later: float
    """Seconds from the second turn on."""
    first: float | None = None
    """Seconds in the first turn; None: same as `later`."""
    in_vain: float | None = None
    """Seconds after a turn without improvement; None: same as `later`."""
    max_share: float = 1.0
    """Largest number of seconds of a turn, as a share of the whole search."""
    repeats: int = 0
    """Maximum number of further turns in a round, each after a fruitful one."""


class RoundParams(NamedTuple):
    """Rounds in which the methods take turns."""

    max_rounds: int | None = None
    """Maximum number of rounds; None: no limit. Searches over configurations set it."""
    first_seconds: float = 0.5
    """Largest unit of the first round in seconds; each round doubles the unit of the last."""
    first_per_operation: float = 5e-4
    """Largest unit of the first round per operation: the method that proves a small problem may
    be late in a round."""
    max_doublings: int = 60
    """Rounds after which the unit stays the same: far more than any search has time for."""
    subset_dp: Share = Share(12, first=1, in_vain=2, max_share=0.25)
    """With several workers it runs in a child process after its first turn."""
    relaxations: Share = Share(2, 1)
    relaxations_large: Share = Share(2, 1, 1)
    """Share of the relaxations for problems without a full model: there window LNS is more
    effective."""
    justification: Share = Share(1)
    local_search: Share = Share(2 / 3)
    dynamic_program: Share = Share(2)
    cyclic: Share = Share(4, max_share=0.1)
    windows: Share = Share(6, repeats=8)
    full_model: Share = Share(12)
    feasibility: Share = Share(4)
    swaps: Share = Share(2 / 3)
    swaps_over_links: Share = Share(8)
    lagging: float = 0.25
    """Share of its turn that a method for one kind of backward uses if backwards are mixed and
    schedules with another kind, or with both, are better."""


class ConfigurationParams(NamedTuple):
    """The search over configurations, such as partitions, placements and recompute."""

    quick_share: float = 0.25
    """Maximum share of the remaining time for one quick search, so that others have time too."""
    quick_per_operation: float = 1.5e-3
    """Maximum seconds of one quick search per operation, unless the plan is reproducible."""
    grace: float = 0.3
    """Seconds by which the search for a first schedule may exceed the time limit."""
    quick_bounding: float = 0.1
    """Maximum share of the remaining time for bounds before all but a first schedule, if the search
    is reproducible."""
    first_share: float = 0.5
    """Maximum share of the remaining time for the best known schedule of every placement, which is
    often improved by 10 %, and for first configurations."""
    first: int = 20
    """Number of configurations of every group that are scheduled before the first improvement,
    besides those of known schedules."""
    first_round: float = 0.4
    """Maximum share of the remaining time for the searches of the first round."""
    quick: int = 80
    """Number of configurations of every group that are scheduled quickly in the first round;
    doubled in each round."""
    smallest: int = 20
    """Configurations with the smallest bounds that are scheduled quickly before any is searched."""
    moves: int = 60
    """Maximum number of moves of the best configuration that are scheduled quickly at a time."""
    climb_share: float = 0.1
    """Maximum share of the remaining time for these moves each time: on 16 devices with 64
    microbatches all of them would take half a minute."""
    together: int = 3
    """Configurations that are searched at a level of effort, if not all are enumerated."""
    bounding_share: float = 0.5
    """Maximum share of the remaining time, in every round, for bounds over all configurations. One
    that needs longer has a weaker bound until a later round, which continues."""
    bounding: float = 4.0
    """Units of work for raising the smallest bounds by subsets of devices, at first; twice as many
    at each level of effort."""
    min_work: float = 0.01
    """Minimum units of work that raising a bound counts as."""
    subsets: int = 3
    """Subsets of devices that raised other bounds and are tried first."""
    bounding_step: float = 1.0
    """Units of work spent on one configuration before the smallest bound is determined again."""
    max_perturbations: int = 50
    """Maximum number of consecutive random moves to known configurations."""
    contenders: int = 6
    """Maximum number of configurations whose schedules are improved by windows alone."""
    contender_margin: float = 0.05
    """Maximum excess of the mean of their value and their bound over that of the first."""
    min_slice: float = 1.0
    """Minimum seconds for which each of them is improved."""
    slice_per_operation: float = 4e-4
    """The same per operation: with 12,000 operations windows improve little in 1 s."""
    min_spent: float = 4.0
    """Seconds of a search before it improves them: small problems are solved earlier."""
    first_improving: float = 0.3
    """Maximum share of the remaining time, before the first round, for improving them."""
    min_improving: float = 4.0
    """Minimum seconds of this improvement, up to `improving` of the remaining time: in a short
    search, windows improve more than further configurations."""
    improving: float = 0.9
    """Maximum share of the remaining time for improving them before every later round."""
    small_improving: float = 0.0
    """The same if the search is reproducible."""


class MoveParams(NamedTuple):
    """Local search over the orders of devices and links, and over modes."""

    temperature: float = 0.01
    """Largest loss of a step that may be accepted, as part of the best value."""
    patience: int = 400
    """Number of steps without improvement after which the search returns to the best schedule."""
    first_steps: int = 2000
    """Steps of the first turn; every turn has twice as many as the last."""
    step_seconds: float = 4e-7
    """Time of a step per operation or transfer."""
    flips: float = 0.05
    """Share of the steps that flip a mode, in mixed problems. Of 48 searches of 4 s with pairs,
    slices or links, 19 end lower than without and 11 higher, on average 0.9 % lower."""


class PlanParams(NamedTuple):
    """Division of the time of a plan; shares of its time limit unless a field says otherwise."""

    first_schedules: float = 0.15
    """Maximum share for strategies with the balanced partition, before anything else."""
    baseline_share: float = 0.25
    """Maximum share for baselines before the search."""
    baseline_seconds: float = 4.0
    """Maximum seconds for baselines before the search, unless the plan is reproducible. Baselines
    improve little after the first turns, so the rest of a long time limit is for the search."""
    min_baseline_seconds: float = 1.0
    """Minimum of them, up to `baseline_share`: a slow machine spends these seconds before."""
    baseline_descents: int = 8
    """Maximum number of descents of a baseline before the search of one worker, which then does not
    depend on the clock if it has time for all of them."""
    refinement_share: float = 0.1
    """Maximum share for continuing the baselines that the reported gain refers to, before the
    search. Their partitions are often the best to start from."""
    late_baseline_share: float = 0.04
    """Share of the time of the search for the remaining baselines, after it. What they leave is for
    the search for less memory."""
    min_memory_share: float = 0.03
    """Minimum share of the search for less memory at the same speed."""
    memory_share: float = 0.05
    """Share of that search if the time remains; it is longer if the plan took longer."""
    memory_max_level: int = 1
    """Maximum rounds of all methods on one partition in that search."""
    memory_alone: float = 0.6
    """Share of it for the partition and recompute of the best schedule alone."""
    slowdown_share: float = 0.2
    """Share of the search for the minimum memory within a slowdown, if requested."""
    extra_memory_share: float = 0.03
    """Minimum share of the search with more memory."""
    more_memory_percent: int = 110
    """Memory limit of the search with more memory, as a multiple of the limit of the plan."""
    max_reproducible: int = 300
    """Maximum number of operations of a plan by one worker whose result does not depend on the
    speed of the machine if it ends by proof: no part of it ends by the clock."""
    configurations: ConfigurationParams = ConfigurationParams(first=1, quick=4, small_improving=0.9)
    """The search: it starts from strategies, and divides its time between many configurations."""
    margin: float = 1.1
    """Multiple of the best value up to which bounds are exact, to report by how much a
    configuration is slower."""


class FrontierParams(NamedTuple):
    """Division of the time of a frontier, and of a search for less memory."""

    strategies: float = 0.25
    """Maximum share of the time limit for evaluating baselines."""
    strategy_searches: float = 0.1
    """The same for searching their partitions and recompute, which improves them little later."""
    first: float = 0.45
    """Maximum share of the remaining time for the largest limit if configurations are searched."""
    edge: float = 0.25
    """Maximum share of the remaining time for finding the minimum memory of the best value."""
    edge_step: float = 0.01
    """Share of a limit to which this search bisects before it searches limits longer."""
    by_work: float = 0.5
    """Maximum share of the remaining time for a search that its work limits."""
    bounding: float = 0.5
    """Share of the time of a search in which bounds first try to exclude its target."""
    improved_per_operation: float = 3e-3
    """Minimum seconds of a search per operation if schedules are also improved: to begin, that of
    internvl2-26b needs 1 s."""
    configurations: ConfigurationParams = ConfigurationParams(quick=8)
    """The search of the configurations within a limit."""
    min_seconds: float = 0.05
    """Minimum seconds of a search."""
    per_operation: float = 5e-5
    """Minimum seconds of a search per operation: time to construct and verify a schedule."""
    doublings: int = 30
    """Maximum number of doublings of the search time at one limit."""
    given_up: float = 10.0
    """A search with at least this time limit, in seconds, that ends before half of it is exhausted:
    repeating it would end the same way."""


@dataclass(frozen=True)
class SolveParams:
    """All tuning constants of a search, per method."""

    without: frozenset[str] = frozenset()
    """Names of methods that are left out, to measure their contribution."""
    rounds: RoundParams = field(default_factory=RoundParams)
    cp_sat: CpSatParams = CP_SAT
    construction: ConstructionParams = field(default_factory=ConstructionParams)
    priority_rules: PriorityRuleParams = field(default_factory=PriorityRuleParams)
    cyclic: CyclicParams = field(default_factory=CyclicParams)
    steady_state: SteadyStateParams = field(default_factory=SteadyStateParams)
    pool: PoolParams = field(default_factory=PoolParams)
    justification: JustificationParams = field(default_factory=JustificationParams)
    local_search: LocalSearchParams = field(default_factory=LocalSearchParams)
    windows: WindowParams = field(default_factory=WindowParams)
    relaxation: RelaxationParams = field(default_factory=RelaxationParams)
    subset: SubsetParams = field(default_factory=SubsetParams)
    dynamic_program: DynamicProgramParams = field(default_factory=DynamicProgramParams)
    full_model: FullModelParams = field(default_factory=FullModelParams)
    feasibility: FeasibilityParams = field(default_factory=FeasibilityParams)
    configurations: ConfigurationParams = field(default_factory=ConfigurationParams)
    moves: MoveParams = field(default_factory=MoveParams)
    frontier: FrontierParams = field(default_factory=FrontierParams)
    plan: PlanParams = field(default_factory=PlanParams)

    def __repr__(self) -> str:
        """Show the values that differ from the defaults."""
        usual = {
            own.name: own.default if own.default_factory is MISSING else own.default_factory()
            for own in fields(self)
        }
        changed = {
            name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]
        }
        return f"SolveParams({', '.join(f'{name}={value!r}' for name, value in changed.items())})"
