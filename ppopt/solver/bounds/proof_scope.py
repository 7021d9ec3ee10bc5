"""Text on what a proof covers, by the traits of the problem."""

from __future__ import annotations

from collections.abc import Mapping

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait, Traits
from ppopt.schedule.origin import Argument
from ppopt.solver.bound import Bound, start_scope

SEARCHED: Mapping[Trait, str] = {
    Trait.LINKS: " and their transfers",
    Trait.STEP_WORK: " and all that runs once in a step",
    Trait.OFFLOAD: " and all moves to the host",
    Trait.MIXED: "",
    Trait.PAIRS: "",
    Trait.SHORT_PAIRS: "",
    Trait.SLICES: "",
    Trait.ROUTES: "",
    Trait.FROZEN: "",
    Trait.SPAN: "",
    Trait.MICROBATCHES: " in the given order of microbatches",
    Trait.UNEQUAL_SLICES: "",
}
"""Traits of the problems whose orders a search by CP-SAT covers, and what it names besides the
operations of compute."""
RELAXED: Mapping[Trait, str] = {
    Trait.MIXED: ", even with every backward split into B as long as the shorter of B and BW, and "
    "W as long as what the shorter of BW and B + W leaves",
    Trait.SHORT_PAIRS: ", even with every F and backward no longer than the shortest pair that it "
    "can be in",
    Trait.MICROBATCHES: ", even with every microbatch as short, and as small, as the smallest",
}
"""Traits that `Problem.relaxed` removes, and the text on its bounds."""
DELAYED: Mapping[Trait, str] = {
    Trait.LINKS: "; links that carry one transfer at a time only delay more than delays do, so "
    "this bound of the delays holds for them",
}
"""Traits that only delay more, and the text on bounds of problems without them."""
KINDS = {
    BackwardKind.MIXED: "; every backward whole or split, whichever is better",
    BackwardKind.SPLIT: "; of the schedules whose backwards are all split (--backward split)",
    BackwardKind.WHOLE: "; of the schedules whose backwards are all whole (--backward whole)",
}
"""Text on the schedules that a proof covers, by kind of backwards."""
REDUCED = {
    BackwardKind.SPLIT: "; all backwards split, which is never worse here (BW >= B + W, and B "
    "takes no memory)",
    BackwardKind.WHOLE: "; all backwards whole, which is never worse here (BW <= B)",
}
"""Text on the kind of backward that is never worse, if both are allowed."""


def searched(problem: Problem) -> str:
    """Text of a proof by search; the caller appends what was not found."""
    besides = "".join(text for trait, text in SEARCHED.items() if trait in problem.traits)
    return (
        f"CP-SAT searched all orders of the {problem.operations} operations{besides} and found none"
    )


def delay_scope(problem: Problem) -> str:
    """Text that says that a bound of delays covers links, too; empty if there are none."""
    return "".join(text for trait, text in DELAYED.items() if trait in problem.traits)


def proof_scope(problem: Problem) -> str:
    """Text on the schedules that a proof of a requested problem covers.

    Empty if all backwards are split and that loses nothing.
    """
    never_worse, kind = problem.choice.uniform, problem.backward_kind
    if kind is BackwardKind.MIXED and never_worse is not None:
        return REDUCED[never_worse]
    return "" if kind is never_worse is BackwardKind.SPLIT else KINDS[kind]


def bound_scope(problem: Problem, bound: Bound) -> str:
    """Text on the schedules that a bound covers: their backwards, starts and links."""
    starts = start_scope(problem, bound.value, bound.certificate.devices)
    over_links = bound.certificate.argument is Argument.TRANSFERS
    return proof_scope(problem) + starts + ("" if over_links else delay_scope(problem))


def of_relaxation(problem: Problem, bound: Bound, retained: Traits = frozenset()) -> Bound:
    """Bound of `problem.relaxed`, with text that says so if that is another problem.

    Also for another relaxation, with `retained` traits that `problem.relaxed` removes.
    """
    removed = problem.traits - retained
    text = "".join(text for trait, text in RELAXED.items() if trait in removed)
    return bound._replace(proof=bound.proof + text) if text else bound
