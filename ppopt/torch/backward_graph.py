"""Inspects the autograd graph of a stage's output: limits of a split backward, and saved tensors.

PyTorch splits a backward along this graph: I runs the nodes on the way to the input, W those that
lead only to weights. A node that leads to both and computes both gradients in one call runs twice:
a node of compiled code, or a `torch.autograd.Function` of the user.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_leaves

_COMPILED = "CompiledFunction"
"""Prefix of the names of AOTAutograd's nodes, `CompiledFunctionBackward`."""


def is_compiled(module: nn.Module) -> bool:
    """Whether a module or a part of it was compiled, by `torch.compile` or in place."""
    return any(
        submodule._compiled_call_impl is not None
        or isinstance(submodule, torch._dynamo.OptimizedModule)
        for submodule in module.modules()
    )


def nodes(tree: Any) -> Iterator[Any]:
    """All nodes of the graph behind the tensors of a tree."""
    return _reached(_roots(tree), lambda _: True)


def _roots(tree: Any) -> list[Any]:
    """The nodes that produced the tensors of a tree."""
    return [
        leaf.grad_fn
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
    ]


def _reached(roots: Iterable[Any], through: Callable[[Any], bool]) -> Iterator[Any]:
    """All nodes that are reached from the roots through nodes that fulfil a condition."""
    waiting = list(roots)
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions if through(node) else ():
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def has_compiled_nodes(tree: Any) -> bool:
    """Whether the graph behind the tensors of a tree has nodes of compiled code."""
    return any(node.name().startswith(_COMPILED) for node in nodes(tree))


def adds_compiled_nodes(result: Any, arguments: Any) -> bool:
    """Whether the graph between these arguments and a result has nodes of compiled code."""
    before = set(nodes(arguments))
    return any(node.name().startswith(_COMPILED) for node in nodes(result) if node not in before)


def computed_twice(output: Any, weights: Iterable[Any]) -> str | None:
    """Name of a node that a split backward runs twice; None if there is none.

    Such a node is compiled, or a `torch.autograd.Function`, and takes both weights and other
    tensors with a gradient.
    """
    own = {id(weight) for weight in weights}
    for node in nodes(output):
        if isinstance(node, BackwardCFunction) or node.name().startswith(_COMPILED):
            inputs = [before for before, _ in node.next_functions if before is not None]
            num_weights = sum(id(getattr(before, "variable", None)) in own for before in inputs)
            if 0 < num_weights < len(inputs):
                return str(node.name())
    return None


def lost_by_split(
    output: Any, inputs: Iterable[Any], weights: Iterable[tuple[str, Any]]
) -> str | None:
    """Name of a weight whose gradient a split backward loses, wholly or partly; None if none is.

    I records the gradients of the nodes on the paths from the outputs to the inputs, and W starts
    from those. A path from an output to a weight that meets none of these nodes is lost.
    """
    names = {id(weight): name for name, weight in weights}
    to_inputs = _leading_to(output, {id(tensor) for tensor in inputs})
    for node in _reached(_roots(output), lambda node: node not in to_inputs):
        variable = getattr(node, "variable", None)
        if node not in to_inputs and id(variable) in names:
            return names[id(variable)]
    return None


def _leading_to(output: Any, leaves: Container[int]) -> set[Any]:
    """The nodes behind an output from which one of these leaves is reached."""
    before = defaultdict(list)
    waiting = []
    for node in nodes(output):
        if id(getattr(node, "variable", None)) in leaves:
            waiting.append(node)
        for following, _ in node.next_functions:
            before[following].append(node)
    leading = set(waiting)
    while waiting:
        new = set(before[waiting.pop()]) - leading
        leading |= new
        waiting += new
    return leading


def saved_tensors(tree: Any) -> Iterator[Any]:
    """The tensors that the graph behind the tensors of a tree has saved for the backward."""
    for node in nodes(tree):
        if isinstance(node, BackwardCFunction) or hasattr(node, "saved_tensors"):
            yield from node.saved_tensors
        for name in dir(node):
            if name.startswith("_saved_"):
                yield from tree_leaves(getattr(node, name))
