"""Features: the terms of a training step, as resources, classes of operations and precedence.

A feature is one file. It turns fields of a `Pipeline` into parts of an `InstanceDraft`. Features
import nothing above `ppopt.problem.instance`.
"""

from __future__ import annotations

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.compute import add_compute
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.features.gradient_work import add_gradient_work
from ppopt.problem.features.transfers import add_delays, add_transfers
from ppopt.problem.pipeline import Pipeline


def on_devices(pipeline: Pipeline, backward: BackwardKind) -> InstanceDraft:
    """What devices compute; all else is the delay that it causes."""
    draft = InstanceDraft(pipeline, backward)
    add_compute(draft)
    add_delays(draft)
    return draft


def on_all_resources(pipeline: Pipeline, backward: BackwardKind) -> InstanceDraft:
    """All operations of a pipeline."""
    draft = InstanceDraft(pipeline, backward)
    add_compute(draft)
    add_transfers(draft)
    add_gradient_work(draft)
    return draft
