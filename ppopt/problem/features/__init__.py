"""Features: the terms of a training step, as resources, classes of operations and precedence.

A feature is one file. It turns fields of a `Pipeline` into parts of an `InstanceDraft`. Features
import nothing above `ppopt.problem.instance`.
"""

from __future__ import annotations

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.compute import add_compute
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.features.gradient_work import add_gradient_work, without_gradient_work
from ppopt.problem.features.microbatches import add_microbatches
from ppopt.problem.features.offload import add_offload, without_offload
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.pipeline import Pipeline


def draft_of(costs: InstanceCosts, backward: BackwardKind, *, all_resources: bool) -> InstanceDraft:
    """The draft of all operations of a pipeline, or of compute alone with all else as delays."""
    draft = InstanceDraft(costs, backward, all_resources)
    add_compute(draft)
    if all_resources:
        add_gradient_work(draft)
        add_offload(draft)
    add_microbatches(draft)
    return draft


def compute_alone(pipeline: Pipeline) -> Pipeline:
    """The relaxation of a pipeline whose operations are all compute: links are delays."""
    return without_offload(without_gradient_work(as_delays(pipeline)))


def as_delays(pipeline: Pipeline) -> Pipeline:
    """The same pipeline with links that are delays."""
    return pipeline.having(link_mode=LinkMode.DELAY) if pipeline.has_links else pipeline
