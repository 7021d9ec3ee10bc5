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
    Trait.MICROBATCHES: " in the given order of microbatches",
}
"""What a search by CP-SAT covers besides the operations of compute, by trait."""
RELAXED: Mapping[Trait, str] = {
    Trait.MIXED: ", even if every backward took its minimum time",
    Trait.SHORT_PAIRS: ", even if every F and every backward were as short as its shortest "
    "overlapped pair",
    Trait.MICROBATCHES: ", even if every microbatch were as short and as small as the smallest",
}
"""Traits that `Problem.relaxed` removes, and the text on its bounds."""
DELAYED: Mapping[Trait, str] = {
    Trait.LINKS: "; the bound ignores link contention, so it holds with contention too",
    Trait.BLOCKING: "; it counts no compute that transfers block",
}
"""Traits that only delay more, and the text on bounds of problems without them."""
KINDS = {
    BackwardKind.MIXED: "; every backward is whole or split, whichever is better",
    BackwardKind.SPLIT: "; for schedules whose backwards are all split (--backward split)",
    BackwardKind.WHOLE: "; for schedules whose backwards are all whole (--backward whole)",
}
"""Text on the schedules that a proof covers, by kind of backwards."""
REDUCED = {
    BackwardKind.SPLIT: "; all backwards are split into B and W; here this cannot be slower "
    "(BW >= B + W, and B allocates nothing)",
    BackwardKind.WHOLE: "; all backwards are whole; here this cannot be slower (BW <= B)",
}
"""Text on the kind of backward that cannot be slower, if both are allowed."""


def searched(problem: Problem) -> str:
    """Text of a proof by search."""
    besides = "".join(text for trait, text in SEARCHED.items() if trait in problem.traits)
    operations = f"{problem.num_operations} operations{besides}"
    return f"CP-SAT searched all orders of the {operations} and found none faster"


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
