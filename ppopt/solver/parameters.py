"""Tuning constants of the search, per method.

Measured on 2 cores with CP-SAT 9.15, over `benchmarks.suite` unless a field says otherwise. A
search takes them as one frozen value, so that a benchmark can vary one and leave the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ppopt.schedule.list_scheduling import RuleStyle


@dataclass(frozen=True)
class CpSatParams:
    """How CP-SAT is used, by every method that uses it."""

    proof_subsolvers: tuple[str, ...] = ("ordering", "ordering_quick_restart")
    """Subsolvers (of `cp_sat.cpsat`) that prove most models soonest: they reason about the order
    of the operations of a device, by precedences found on the way and strong propagation."""
    schedule_subsolvers: tuple[str, ...] = ("no_lp", "quick_restart_no_lp")
    """CP-SAT's subsolvers that find a schedule of a given value soonest, where there is one."""
    linearization_level: int = 0
    """CP-SAT's `linearization_level`. The linear relaxation of one operation at a time says next
    to nothing, and solving it at every node takes nearly all of the time: without it the pipeline
    28.3b p=4 m=16 K=3 is proved in 1 s, with it not in 30 s."""
    tiny_linearization_level: int = 2
    """The same of a tiny model, where the relaxation of all its constraints proves more than
    reasoning about orders."""
    max_pairs: int = 40_000
    """Largest number of overlapped pairs that a model chooses from."""
    poll_seconds: float = 0.2
    """Seconds between two checks of whether to stop."""


CP_SAT = CpSatParams()
"""The defaults."""


@dataclass(frozen=True)
class DominanceParams:
    """How states of a dynamic program are compared with others of the same counts."""

    max_comparisons: int = 16
    """Largest number of states that one state is compared with; what is left then is kept."""


DOMINANCE = DominanceParams()
"""The defaults."""


@dataclass(frozen=True)
class PriorityRuleParams:
    """Which priority rules list scheduling tries.

    Styles tuned on half of the smaller instances of the core suite: of a wider choice, those that
    reach the best schedules together.
    """

    round_trip_styles: tuple[RuleStyle, ...] = (
        RuleStyle(True, 50, room_first=True, prompt=True),
        RuleStyle(True, 99, prompt=True),
        RuleStyle(True, 50),
        RuleStyle(False, 99),
        RuleStyle(True, 99, room_first=True, prompt=True),
    )
    """Styles with caps by the time until the first backward is back."""
    falling_styles: tuple[RuleStyle, ...] = (
        RuleStyle(False, 99),
        RuleStyle(True, 50, room_first=True, prompt=True),
        RuleStyle(False, 0),
    )
    """Styles with caps that fall along the stages."""
    shared_memory_styles: tuple[RuleStyle, ...] = (
        RuleStyle(True, 0, room_first=True),
        RuleStyle(False, 50, prompt=True),
        RuleStyle(True, 50),
        RuleStyle(False, 0, room_first=True),
    )
    """Styles with caps that share out the memory of a device to its chunks."""
    max_share_steps: int = 16
    """Most steps between an equal share and the whole of a device's memory for its first chunk;
    set by the time that all rules take."""


@dataclass(frozen=True)
class NetworkParams:
    """How `ppopt.solver.heuristics.double_justification` looks at the operations of a problem."""

    busy_share: float = 0.97
    """Least work of a busy device, as a share of the largest work of a device. Windows are drawn
    around the idle gaps of busy devices; tuned on the core suite."""
    least_skew: float = 0.25
    """Least skew of an order of windows, as a share of the mean duration of an operation: below it
    a skewed window hardly differs from an upright one."""


@dataclass(frozen=True)
class PoolParams:
    """Schedules and rules that local search starts from."""

    rules: int = 3
    """Priority rules kept for annealing."""
    schedules: int = 5
    """Justified schedules kept, of different values."""
    justified_operations: int = 100_000
    """Operations of all constructed schedules that are justified; at least two schedules are."""
    justifying_seconds: float = 1.5e-5
    """Seconds that justifying a schedule takes per operation, and as long to prepare it."""
    passes: int = 4
    """Most justifications of a schedule that keeps getting shorter."""
    first_steps: tuple[int, int] = (50, 500)
    """Fewest and most steps from each start in a first turn of local search or annealing; each turn
    takes twice as many as the last."""
    first_operations: int = 1_000_000
    """Operations to place in those, if that is between the fewest and the most steps."""

    network: NetworkParams = NetworkParams()

    def steps(self, operations: int) -> int:
        """Steps from each start in a first turn, for schedules of so many operations."""
        fewest, most = self.first_steps
        return min(max(self.first_operations // operations, fewest), most)


@dataclass(frozen=True)
class JustificationParams:
    """Justified and expedited schedules: where local search starts."""

    first: int = 3
    """Schedules justified before anything else is tried, where that takes next to no time."""
    first_most: int = 1_000
    """Most operations of a problem for which it does."""
    seconds_for_all: float = 0.5
    """Seconds of a turn in which all schedules to be justified are."""
    expedited: tuple[tuple[int | None, float], ...] = ((1, 1.0), (1, 0.25), (None, 1.0))
    """Backwards that are expedited: of how many microbatches (None: all), by what part of the
    possible gain."""
    alike: float = 1.002
    """Value of an expedited schedule that is kept, as a multiple of the best, at most."""


@dataclass(frozen=True)
class CyclicParams:
    """How cyclic schedules are searched for.

    Tuned on pipelines of the core suite in tight memory.
    """

    close: float = 1.01
    """Ratio of the shortest period found to the longest one without a schedule, at which the
    bisection of periods stops."""
    effort: float = 0.2
    """Deterministic units of CP-SAT for one period at most."""
    longest: float = 2.0
    """Seconds for one period at most, where the clock rules."""
    overhead: float = 0.2
    """What a period costs besides CP-SAT, in its deterministic units."""
    fineness: int = 256
    """Coarse units of time in a period, at least. Times are rounded to coarse units, because only
    the order of a cycle is used and CP-SAT is slow on fine ones."""
    reach: int = 3
    """Longest time of a microbatch through the pipeline, as a multiple of the least."""
    kept: int = 2
    """Runs of cyclic schedules that are kept to search windows from."""


@dataclass(frozen=True)
class SteadyStateParams:
    """How a long run is made from the steady state of a short one.

    Tuned on runs of 256 to 1024 microbatches on 4 to 64 devices.
    """

    per_device: tuple[int, int] = (4, 8)
    """Fewest and most microbatches of the short run, per device."""
    operations: int = 24_000
    """Operations of the short run, where that is between the fewest and the most microbatches."""
    longer: int = 3
    """A run is long if it has at least this many times the microbatches of the short one."""
    share: float = 0.25
    """Share of the time left for the search of the short run, and again for its sections. One
    worker has to give the same result again, and what a search has found when its time is up is
    not the same: one worker repeats only a short run that is proved optimal."""
    max_size: int = 24
    """Most microbatches of a period."""
    regular: int = 8
    """Number of single periods that are rated."""
    trial: int = 100
    """Further microbatches, about, by which a section is rated; three periods at least."""
    unrolled: int = 3
    """Sections of the best rate that are unrolled to the whole run."""
    looser: tuple[float, ...] = (1.0, 1.02)
    """Periods tried, as multiples of the section's own: longer ones hold less memory."""


@dataclass(frozen=True)
class LocalSearchParams:
    """Iterated local search over schedules."""

    warmth: float = 0.001
    """Share of the value by which a step may be worse, at most."""
    patience: int = 60
    """Steps without a better schedule after which the search returns to the best one."""
    strengths: tuple[float, ...] = (0.5, 1, 2, 4, 8)
    """Sizes of a disturbance, in mean operation times."""
    stretches: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 2, 2, 2, 2)
    """Lengths of the stretch of time that is disturbed, as shares of the whole."""
    step_seconds: float = 6e-6
    """Seconds that a step takes per operation: what one worker pays for it."""


@dataclass(frozen=True)
class AnnealingParams:
    """Simulated annealing over priority rules."""

    warmth: float = 0.005
    """Share of the value by which a step may be worse at the start."""
    patiences: tuple[int, ...] = (0, 25, 50, 75, 99)
    """Values tried for a rule's patience, in percent of a weight pass."""
    step_seconds: float = 2e-6
    """Seconds that a step takes per operation: what one worker pays for it."""


@dataclass(frozen=True)
class WindowParams:
    """Large neighbourhood search by windows of time."""

    first_size: int = 16
    """Operations of the first window, per device."""
    least_size: int = 20
    """Operations of the smallest window that the size shrinks to."""
    skew: float = 0.9
    """Skew of windows, as a part of the steepest that keeps the data flow."""
    smallest: float = 0.3
    """Smallest window, as a share of the size that the search has come to."""
    growth: float = 1.1
    """Factor of the size after a window that is solved to its end."""
    shrinkage: float = 1.15
    """Divisor of the size after a window that is not, and has brought nothing."""
    draws: int = 10
    """Draws per window, to find one that can improve the schedule."""
    guided: float = 0.75
    """Part of the windows that lie around a wait of a busy device."""
    effort: float = 0.1
    """Deterministic units of one window at most: about a second where many share a processor."""
    longest: float = 1.0
    """Seconds of one window at most, where the clock rules."""
    overhead: float = 0.05
    """What a window costs beside CP-SAT, and to look for one, in its deterministic units."""
    most_at_once: int = 8
    """Most windows that are solved side by side."""
    least_share: float = 0.25
    """Least share of a budget used after turns in vain, where a full model needs it more."""
    full_model_operations: int = 4_000
    """Most operations of a problem with a full model."""


@dataclass(frozen=True)
class RelaxationParams:
    """Lower bounds from relaxed CP-SAT models of a few devices."""

    spreads: tuple[int, ...] = (2, 3, 4, 8)
    """Sizes of the sets of devices spread along the pipeline."""
    focuses: tuple[tuple[str, ...], ...] = (
        ("ordering", "ordering_quick_restart"),
        ("ordering", "ordering_quick_restart"),
        ("core", "objective_lb_search"),
        (),
    )
    """CP-SAT's subsolvers per turn that minimises: on these models each is, now and then, ten
    times faster."""
    first: int = 4
    """Devices alone that come before the sets."""
    share: float = 0.5
    """Largest share of a budget for one relaxed model, and of that for one question."""


@dataclass(frozen=True)
class SubsetParams:
    """Dynamic programming over subsets of devices."""

    share: float = 0.5
    """Largest share of a budget for one subset, and of that for one question."""
    hope: float = 1 / 3
    """All that is better than the best schedule is followed while what is left takes less than this
    part of the search, if there come to be no fewer states than there are now."""
    bulge: float = 10
    """A question is followed while what is left takes at most so many times its time, likewise."""
    most_entries: int = 40_000_000
    """Most numbers held for all states of one length."""


@dataclass(frozen=True)
class DynamicProgramParams:
    """Dynamic programming over all devices, and beam search."""

    spreads: tuple[int, ...] = (3, 2, 4)
    """Sizes of the sets of devices spread along the pipeline: three often need as long as all, and
    two are not much easier."""
    share: float = 0.5
    """Largest share of a budget for one of several sets."""
    state_seconds: float = 7e-6
    """Seconds that a state takes on the machine on which this was measured."""
    step_seconds: float = 1.5e-3
    """Seconds beside that for all states of one length."""
    first_reach: float = 0.12
    """All devices go on to the end in the first turn while what is left takes less than this part
    of the search."""
    reach: float = 0.5
    """The same in later turns."""
    least_beam: int = 200
    """Fewest states of one length with which schedules are searched without a proof."""
    most_classes: int = 30
    """Most classes with which they are: 8 devices of one stage each or 4 of two; with more, what is
    among so few states is worse than what local search finds."""
    most_rows: int = 600
    """Most numbers that describe a state."""
    most_flags: int = 30
    """Most classes that share memory: each has a bit of a number of 32 bits."""
    most_entries: int = 40_000_000
    """Most numbers held for all states of one length."""


@dataclass(frozen=True)
class FullModelParams:
    """The CP-SAT model of all devices."""

    operations: int = 600
    """Most operations for which the best is searched by the full model."""
    most_operations: int = 4_000
    """Most operations for which a CP-SAT model of all devices is built."""
    tiny_operations: int = 200
    """Most operations for which the full model comes first: it often proves them at once."""
    focuses: tuple[tuple[str, ...], ...] = (
        ("ordering",),
        ("ordering_quick_restart",),
        ("ordering",),
    )
    """CP-SAT's subsolvers per turn, beside large neighbourhoods: the first proves most, the other
    one what the first is long at."""
    presolve_seconds: float = 0.0005
    """Seconds per operation by which CP-SAT may overrun its limit while it simplifies a model."""
    steps: int = 100
    """Into how many steps a search divides the gap that it starts with."""
    recheck_seconds: float = 10.0
    """Most seconds to confirm infeasibility by the re-checker: nobody else could see it."""


@dataclass(frozen=True)
class QuestionParams:
    """CP-SAT asked for schedules of given values."""

    operations: int = 600
    """Fewest operations, less one: smaller problems have the full model."""
    most_operations: int = 4_000
    """Most operations for which a CP-SAT model of all devices is built."""
    close: int = 100
    """The bound may well be met where the gap is at most this fraction of the value."""
    per_device: int = 3
    """Microbatches per device of the shorter run: warm-up, middle and cool-down alike."""
    share: float = 0.5
    """Largest share of a budget for one question, but for one at a bound that is close."""


@dataclass(frozen=True)
class Share:
    """Seconds of a method in a round, as a multiple of the round's unit."""

    later: float
    """From its second turn on."""
    first: float | None = None
    """In its first turn; None: as later."""
    in_vain: float | None = None
    """After a turn that found out nothing; None: as otherwise."""
    most: float = 1.0
    """Most seconds of a turn, as a part of those of the whole search."""
    since: int = 0
    """First round with a turn; rounds are numbered from 0."""


@dataclass(frozen=True)
class RoundParams:
    """How the methods take turns."""

    first_seconds: float = 0.5
    """Most seconds of the unit of the first round; each round has twice the unit of the last."""
    first_per_operation: float = 5e-4
    """Most seconds of that per operation: what proves a small pipeline may come late in a round."""
    tiny_seconds: float = 0.5
    """Seconds of the full model of a tiny problem, before the rounds."""
    subset_dp: Share = Share(12, in_vain=2, most=0.25)
    subset_dp_remote: Share = Share(12, first=1, in_vain=2, most=0.25)
    """The same with several workers: after the first turn it goes on in a process of its own."""
    relaxations: Share = Share(2, 1)
    relaxations_large: Share = Share(2, 1, 1)
    """The same where no full model is built: windows use the time of a turn in vain better."""
    justification: Share = Share(1)
    local_search: Share = Share(2 / 3)
    annealing: Share = Share(1 / 3)
    beam: Share = Share(2, 0)
    dynamic_program: Share = Share(2)
    cyclic: Share = Share(4, since=1)
    windows: Share = Share(3)
    full_model: Share = Share(12)
    questions: Share = Share(4)


@dataclass(frozen=True)
class RemoteParams:
    """The process in which subsets of devices are searched beside the rest."""

    pause: float = 0.05
    """Seconds between two looks at what the other side has found."""
    first_round: float = 6.0
    """Seconds of its first round; each round takes twice as long."""
    least: float = 3.0
    """Fewest seconds left of a search for which to start it: that takes half a second."""


@dataclass(frozen=True)
class SolveParams:
    """All tuning constants of a search, per method."""

    without: frozenset[str] = frozenset()
    """Names of methods that are left out, to measure what each brings."""
    rounds: RoundParams = field(default_factory=RoundParams)
    cp_sat: CpSatParams = CP_SAT
    priority_rules: PriorityRuleParams = field(default_factory=PriorityRuleParams)
    steady_state: SteadyStateParams = field(default_factory=SteadyStateParams)
    pool: PoolParams = field(default_factory=PoolParams)
    justification: JustificationParams = field(default_factory=JustificationParams)
    cyclic: CyclicParams = field(default_factory=CyclicParams)
    local_search: LocalSearchParams = field(default_factory=LocalSearchParams)
    annealing: AnnealingParams = field(default_factory=AnnealingParams)
    windows: WindowParams = field(default_factory=WindowParams)
    relaxation: RelaxationParams = field(default_factory=RelaxationParams)
    subset: SubsetParams = field(default_factory=SubsetParams)
    dynamic_program: DynamicProgramParams = field(default_factory=DynamicProgramParams)
    full_model: FullModelParams = field(default_factory=FullModelParams)
    questions: QuestionParams = field(default_factory=QuestionParams)
    remote: RemoteParams = field(default_factory=RemoteParams)
