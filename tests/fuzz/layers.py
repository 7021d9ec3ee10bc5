"""Random models in layers as plain data, and their stages by the rules in plain Python.

A case is the fields of a pipeline whose `model` is a list of layers. `spelled_out` makes the
pipeline of stages of one partition and one choice of recompute: it sums the layers' costs itself
and asks nothing of the product's models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, product
from operator import add
from random import Random
from typing import Any

from ppopt import Pipeline
from ppopt.problem.decisions import SEARCH
from ppopt.problem.phase_pairs import Chain
from ppopt.problem.phases import Machine
from tests.fuzz import pipelines
from tests.fuzz.category import SkippedError
from tests.oracles import two_machines
from tests.oracles.configurations import partitions

FIXED = ("even", "balanced", "counts", "layout")
"""Ways to give a partition."""
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "head": "L"}
KINDS = {
    "forward_workspace": "F",
    "input_workspace": "B",
    "weight_workspace": "W",
    "backward_workspace": "BW",
}
BACKWARDS = ("backward", "weight", "input")
PLAIN = {"forward": 1, "activation": 0, "memory_b": 0, "static": 0, "output": 0}
"""The simplest values of what every layer gives."""
Counts = tuple[int, ...]
Choice = bool | tuple[str, ...]
Chosen = tuple[Choice, ...]
"""Which layers recompute: not, all of it, or these modules."""


def draw(
    rng: Random,
    *,
    ops: int,
    partitions: Sequence[str],
    recompute: Sequence[str | None] = (None, None, "none", "full"),
    more_layers: int = 3,
) -> dict[str, Any]:
    """Draw the fields of a pipeline of layers, of at most `ops` operations where backwards split.

    There are up to `more_layers` more layers than stages.
    """
    while True:
        devices = rng.choice((1, 2, 2, 2, 3))
        stages, placed = _placement(rng, devices)
        if 3 * stages <= ops:
            break
    size = stages + rng.randint(0, more_layers)
    model = [draw_layer(rng, role) for role in _roles(rng, size, stages)]
    freeze(rng, model)
    model[0]["activation"] = max(1, model[0]["activation"])  # without any no limit is accepted
    model[0]["output"] = max(1, model[0]["output"])  # nor a link by size
    fields: dict[str, Any] = {
        **placed,
        "batches": rng.randint(1, ops // (3 * stages)),
        "model": model,
        "partition": _partition(rng, rng.choice(partitions), model, stages),
        "recompute": rng.choice(recompute),
        **_links(rng, stages, devices),
    }
    if rng.random() < 0.7:
        whole = sum(layer["activation"] + layer["static"] for layer in model)
        rooms = [rng.randint(whole // (2 * devices), 2 * whole) for _ in range(devices)]
        fields["mem_limit"] = rng.choice((rooms, max(rooms)))
    if SEARCH not in (fields["partition"], fields["recompute"]) and rng.random() < 0.3:
        fields["first_backward"] = "weight"
    return fields


def _placement(rng: Random, devices: int) -> tuple[int, dict[str, Any]]:
    name = rng.choice((None, None, "linear", "v", "interleaved", "list"))
    if name == "list":
        hosts = [*range(devices), *rng.choices(range(devices), k=rng.randint(0, 1))]
        rng.shuffle(hosts)
        return len(hosts), {"stages": len(hosts), "placement": hosts}
    chunks = 2 if name in ("v", "interleaved") else 1
    return chunks * devices, {"stages": devices, "placement": name}


def _roles(rng: Random, size: int, stages: int) -> list[str]:
    """Roles of so many layers, at least one decoder layer for every stage."""
    ends = min(size - stages, rng.randint(0, 3))
    first = ["embedding"] if ends and rng.random() < 0.5 else []
    last = [rng.choice(("mtp", "head")) for _ in range(ends - len(first))]
    return [*first, *(["decoder"] * (size - ends)), *sorted(last, reverse=True)]


def draw_layer(rng: Random, role: str) -> dict[str, Any]:
    """Draw the costs of a layer; some layers recompute."""
    taken = rng.randint(0, 4)
    layer: dict[str, Any] = {"role": role, "forward": rng.randint(1, 4), "activation": taken}
    times = {"backward": rng.randint(0, 6), "weight": rng.randint(0, 3), "input": rng.randint(0, 4)}
    match rng.randrange(3):
        case 0:
            layer["backward"] = times["input"] + times["weight"]
            layer["weight"] = times["weight"]
        case 1:
            layer |= times
    layer["memory_b"] = rng.choice((0, 0, -rng.randint(0, taken), rng.randint(0, 2)))
    layer["static"] = rng.choice((0, 0, 1, 2))
    layer["output"] = rng.randint(0, 3)
    match rng.randrange(6):
        case 0:
            layer["workspace"] = rng.randint(0, 2)
        case 1:
            layer["workspace"] = {kind: rng.randint(0, 2) for kind in rng.sample("FBW", 2)}
    match rng.randrange(5):
        case 0:
            layer["recompute"] = True
        case 1 | 2:
            layer["recompute"] = {
                "time": rng.randint(0, 2),
                "activation": rng.randint(0, taken),
            }
    if taken and rng.random() < 0.3:
        layer["modules"] = draw_modules(rng, taken)
        if rng.random() < 0.3:
            layer["recompute"] = list(rng.choice(module_sets(layer)))
    return layer


def draw_modules(rng: Random, taken: int) -> list[dict[str, Any]]:
    """Up to three modules whose memory adds up to at most `taken`; the third may be inside one."""
    modules, left = [], taken
    for name in ("norm", "attention", "softmax")[: rng.randint(1, 3)]:
        memory = rng.randint(0, left)
        left -= memory
        modules.append({"name": name, "time": rng.randint(0, 2), "memory": memory})
        if rng.random() < 0.3:
            modules[-1]["workspace"] = rng.randint(0, 3)
    if len(modules) > 1 and rng.random() < 0.5:
        modules[-1][rng.choice(("inside", "excludes"))] = modules[-2]["name"]
    return modules


def module_sets(layer: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every set of modules that exclude none of each other."""
    modules = layer.get("modules", ())
    sets: list[tuple[str, ...]] = []
    for flags in product((False, True), repeat=len(modules)):
        own = [module for module, flag in zip(modules, flags, strict=True) if flag]
        names = tuple(module["name"] for module in own)
        if names and not any(module.get("excludes") in names for module in own):
            sets.append(names)
    return sets


def draw_stated(
    rng: Random, *, devices: int, stages: int, more_layers: int, batches: int
) -> dict[str, Any]:
    """Draw a model of up to `more_layers` layers more than stages, its microbatches and limits.

    Layers state what recompute costs them; some say that they do recompute.
    """
    model = [_stated_layer(rng, "decoder") for _ in range(stages + rng.randint(0, more_layers))]
    freeze(rng, model)
    if rng.random() < 0.4:
        model[0]["role"], model[-1]["role"] = "embedding", "head"
    model[0]["activation"] = max(1, model[0]["activation"])  # without any no limit is accepted
    fields: dict[str, Any] = {
        "stages": devices,
        "batches": batches,
        "model": model,
        "p2p": rng.choice((0, 0, 1, 2)),
    }
    if rng.random() < 0.5:
        fields |= {"time_unit": "ms", "memory_unit": "GiB"}
    whole = sum(layer["activation"] + layer["static"] for layer in model)
    rooms = [rng.randint(1 + whole // devices, 3 * whole) for _ in range(devices)]
    match rng.choice(("none", "scalar", "device")):
        case "scalar":
            fields["mem_limit"] = max(rooms)
        case "device":
            fields["mem_limit"] = rooms
    return fields


def _stated_layer(rng: Random, role: str) -> dict[str, Any]:
    """Draw a layer that may state what recompute costs it, and rarely that it recomputes."""
    layer = draw_layer(rng, role)
    recompute = layer.pop("recompute", None)
    if isinstance(recompute, dict):
        layer |= {"recompute_time": recompute["time"], "kept": recompute["activation"]}
    return layer | ({"recompute": True} if rng.random() < 0.05 else {})


def with_phases(rng: Random, layer: dict[str, Any]) -> dict[str, Any]:
    """Draw phases in place of times; nothing that runs is without length.

    One layer in four keeps its F and takes a backward of twice its time.
    """
    plain = {name: value for name, value in layer.items() if name not in BACKWARDS}
    if rng.random() < 0.25:
        return plain
    del plain["forward"]
    ahead = [_phase("compute", rng.randint(1, 2)), _phase("link", rng.randint(0, 3))]
    back = [
        _phase("link", rng.randint(0, 3)),
        _phase("compute", rng.randint(1, 2)) | {"weight": rng.randint(1, 2)},
    ]
    for part in (ahead, back):
        rng.shuffle(part)
    return plain | {"phases": {"F": ahead, "B": back}}


def _phase(on: str, time: int) -> dict[str, Any]:
    return {"on": on, "time": time}


def freeze(rng: Random, model: list[dict[str, Any]]) -> None:
    """Freeze some layers of some models."""
    if rng.random() < 0.3:
        for layer, frozen in zip(model, pipelines.draw_frozen(rng, len(model)), strict=True):
            layer.update({"frozen": True} if frozen else {})


def _links(rng: Random, stages: int, devices: int) -> dict[str, Any]:
    links: dict[str, Any] = {"p2p": rng.choice((0, 0, 1, 2))}
    form = rng.random()
    if form > 0.7:
        links = {"link": _link_by_size(rng)}
    if form < 0.2:
        links["p2p"] = [rng.randint(0, 3) for _ in range(stages - 1)]
    elif form < 0.3:
        size = range(devices)
        links["p2p"] = [[0 if a == b else rng.randint(0, 3) for b in size] for a in size]
    if rng.random() < 0.2 and "backward" not in links.get("link", {}):
        links["backward_p2p"] = rng.randint(0, 3)
    return links


def _link_by_size(rng: Random) -> dict[str, Any]:
    """A link whose delays depend on what layers hand on, perhaps another one on the way back."""
    link: dict[str, Any] = {"latency": rng.randint(0, 2), "bandwidth": rng.choice((1, 2))}
    if rng.random() < 0.3:
        link["backward"] = {rng.choice(("latency", "bandwidth")): rng.randint(1, 3)}
    return link


def _partition(rng: Random, name: str, model: list[dict[str, Any]], stages: int) -> Any:
    if name not in ("counts", "layout"):
        return name
    counts = rng.choice(list(partitions(len(model), stages)))
    return list(counts) if name == "counts" else _layout(rng, model, counts)


def _layout(rng: Random, model: list[dict[str, Any]], counts: Counts) -> str:
    """Write a partition as Megatron-LM does, some decoder layers in a row as a repeat."""
    letters = "".join(LETTERS[layer["role"]] for layer in model)
    stages = [letters[start:end] for start, end in _cuts(counts)]
    if rng.random() < 0.5:
        many = max(stage.count("t") for stage in stages)
        stages = [stage.replace("t" * many, f"t*{many}", 1) for stage in stages]
    return "|".join(stages)


def _cuts(counts: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(counts, initial=0)))


def hosts_of(fields: dict[str, Any]) -> list[int]:
    """Device of every stage."""
    devices, name = fields["stages"], fields["placement"]
    match name:
        case None | "linear":
            return list(range(devices))
        case "interleaved":
            return [*range(devices), *range(devices)]
        case "v":
            return [*range(devices), *reversed(range(devices))]
    return list(name)


def recomputed(fields: dict[str, Any]) -> Chosen:
    """Which layers recompute if that is not searched."""
    if fields["recompute"] == "none":
        return (False,) * len(fields["model"])
    if fields["recompute"] == "full":
        return may_recompute(fields)
    return tuple(
        tuple(stated) if isinstance(stated, list) else bool(stated)
        for stated in (layer.get("recompute", False) for layer in fields["model"])
    )


def may_recompute(fields: dict[str, Any]) -> Chosen:
    """Decoder and MTP layers; the embedding and the head where they say so."""
    return tuple(
        layer["role"] in ("decoder", "mtp")
        or (
            layer.get("recompute", False) not in (False, [])
            and not isinstance(layer["recompute"], list)
        )
        for layer in fields["model"]
    )


def choices(fields: dict[str, Any]) -> Iterator[Chosen]:
    """Every choice of layers that recompute, if it is searched; else the one that is given."""
    if fields["recompute"] == "search":
        may = zip(may_recompute(fields), fields["model"], strict=True)
        yield from product(
            *([False, *([True] if whole else ()), *module_sets(layer)] for whole, layer in may)
        )
    else:
        yield recomputed(fields)


def even(model: list[dict[str, Any]], stages: int) -> Counts:
    """Decoder layers as equally as can be, larger counts first; the others go to the ends."""
    roles = [layer["role"] for layer in model]
    each, more = divmod(roles.count("decoder"), stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] += roles.count("embedding")
    counts[-1] += roles.count("mtp") + roles.count("head")
    return tuple(counts)


def bottleneck(model: list[dict[str, Any]], counts: Counts, chosen: Chosen) -> Fraction:
    """Largest time of F and BW of a stage, recompute included."""
    work = []
    for costs in _all_costs(model, chosen):
        work.append(costs["forward"] + costs["backward"] + costs["recompute_time"])
    return max(sum(work[start:end], Fraction(0)) for start, end in _cuts(counts))


def spelled_out(
    fields: dict[str, Any], cuts: Iterable[Counts], choices: Iterable[Chosen]
) -> Iterator[Pipeline]:
    """The pipelines of every partition with every choice of layers that recompute.

    Pipelines that are equal come once: often several choices cost a stage the same.
    """
    stated = (_stages(fields, counts, chosen) for counts, chosen in product(cuts, choices))
    for stages in {repr(stages): stages for stages in stated}.values():
        yield Pipeline(**stages)


def _stages(fields: dict[str, Any], counts: Counts, chosen: Chosen) -> dict[str, Any]:
    """Fields of the pipeline of stages that hold so many layers each, their costs summed here."""
    layers = _all_costs(fields["model"], chosen)
    columns: dict[str, Any] = {}
    for name in layers[0]:
        rows = [[layer[name] for layer in layers[start:end]] for start, end in _cuts(counts)]
        columns[name] = [max(row) if name in KINDS else sum(row, Fraction(0)) for row in rows]
    cuts = list(_cuts(counts))
    columns["backward_workspace"] = [_in_whole_backward(layers[start:end]) for start, end in cuts]
    columns["recompute_memory"] = [Fraction(0)] * len(cuts)
    columns |= _pairs(fields["model"], counts)
    meanwhile = columns.pop("meanwhile")
    columns["forward_workspace"] = list(map(add, columns["forward_workspace"], meanwhile))
    if fields.get("first_backward") == "weight":
        _all_in_weight(columns)
    rest: dict[str, Any] = {
        name: fields[name]
        for name in ("batches", "p2p", "backward_p2p", "mem_limit")
        if name in fields
    }
    if "link" in fields:
        rest = _delays(fields, counts) | rest
    flags = [layer.get("frozen", False) for layer in fields["model"]]
    frozen = [all(flags[start:end]) for start, end in _cuts(counts)]
    hosts = hosts_of(fields)
    first = [*frozen, False].index(False)
    workspaces = zip(columns["backward_workspace"], columns["input_workspace"], frozen, strict=True)
    if any(whole > at_b for whole, at_b, is_frozen in [*workspaces][first:] if is_frozen):
        raise SkippedError("a frozen stage in its own costs has no workspace of recompute in BW")
    return {"stages": len(counts), "placement": hosts, "frozen": frozen, **rest, **columns}


def _pairs(model: list[dict[str, Any]], counts: Counts) -> dict[str, Any]:
    """Times of F with BW and of F with B of every two stages, by trying every tick."""
    if not any("phases" in layer for layer in model):
        return {}
    first = [*(layer.get("frozen", False) for layer in model), False].index(False)
    model = [layer | {"no_backward": index < first} for index, layer in enumerate(model)]
    stages = [model[start:end] for start, end in _cuts(counts)]
    forwards = [_chain(phase for layer in stage for phase in _ahead(layer)) for stage in stages]

    def times(whole: bool) -> list[list[int]]:
        backwards = [
            _chain(phase for layer in reversed(stage) for phase in _back(layer, whole))
            for stage in stages
        ]
        return [[two_machines.min_time(f, b) for b in backwards] for f in forwards]

    return {"overlap": times(True), "overlap_input": times(False)}


def _ahead(layer: dict[str, Any]) -> list[dict[str, Any]]:
    phases: list[dict[str, Any]] = layer.get("phases", {}).get("F")
    return phases or [_phase("compute", layer["forward"])]


def _back(layer: dict[str, Any], whole: bool) -> list[dict[str, Any]]:
    """Phases of BW or B of a layer; one without phases computes, BW twice as long as F."""
    if layer["no_backward"]:
        return []
    whole &= not layer.get("frozen", False)
    if "phases" not in layer:
        return [_phase("compute", layer["forward"] * (2 if whole else 1))]
    phases: list[dict[str, Any]] = layer["phases"]["B"]
    return phases if whole else [_phase(phase["on"], phase["time"]) for phase in phases]


def _chain(phases: Iterable[dict[str, Any]]) -> Chain:
    """A chain of the phases that take time, each with the W that it leaves."""
    present = [phase for phase in phases if phase["time"]]
    return Chain(
        tuple(Machine(phase["on"]) for phase in present),
        tuple(phase["time"] for phase in present),
        (0, *(phase.get("weight", 0) for phase in present)),
    )


def _in_whole_backward(layers: list[dict[str, Fraction]]) -> Fraction:
    """Memory that BW of a stage allocates: its layers recompute and run one at a time."""
    largest = Fraction(0)
    for index, layer in enumerate(layers):
        freed = sum((later["kept"] for later in layers[index + 1 :]), Fraction(0))
        missing = layer["activation"] - layer["kept"]
        largest = max(largest, missing + layer["backward_workspace"] - freed)
    return largest


def _all_in_weight(columns: dict[str, list[Fraction]]) -> None:
    """Let B of the first stage run nothing and W its whole backward, recompute included."""
    whole = columns["backward"][0] + columns["recompute_time"][0]
    columns["backward"][0] = columns["weight"][0] = whole
    columns["weight_workspace"][0] = columns["backward_workspace"][0]
    columns["activation"][0] = columns["kept"][0]
    for name in ("backward_input", "recompute_time", "memory_b", "input_workspace"):
        columns[name][0] = Fraction(0)


def _delays(fields: dict[str, Any], counts: Counts) -> dict[str, Any]:
    """Delays after every stage but the last, both ways: latency + output / bandwidth."""
    outputs = [fields["model"][end - 1]["output"] for end in accumulate(counts[:-1])]
    down = {key: value for key, value in fields["link"].items() if key != "backward"}
    back = down | fields["link"].get("backward", {})
    p2p, backward_p2p = (
        [link["latency"] + Fraction(size, link["bandwidth"]) for size in outputs]
        for link in (down, back)
    )
    return {"p2p": p2p, "backward_p2p": backward_p2p}


def _all_costs(model: list[dict[str, Any]], chosen: Chosen) -> list[dict[str, Fraction]]:
    """Costs of every layer; `meanwhile`: what its F allocates, and frees at its end."""
    costs_of_layers, trained = [], False
    for layer, recomputes in zip(model, chosen, strict=True):
        costs, frozen = _costs(layer, recomputes=recomputes), layer.get("frozen", False)
        trained |= not frozen
        live = Fraction(0)
        if not trained:
            live = costs["activation"]
            fixed = ("forward", "static", "forward_workspace")
            costs = {name: costs[name] if name in fixed else Fraction(0) for name in costs}
        elif frozen:
            costs["weight"] = costs["weight_workspace"] = Fraction(0)
            costs["memory_b"] = -costs["activation"]
            costs["backward"] = costs["backward_input"]
            costs["backward_workspace"] = costs["input_workspace"]
        costs_of_layers.append(costs | {"meanwhile": live})
    return costs_of_layers


def _costs(layer: dict[str, Any], *, recomputes: Choice) -> dict[str, Fraction]:
    """Costs of a layer with every default written out."""
    if "phases" in layer:
        layer = _summed(layer)
    forward, taken = Fraction(layer["forward"]), Fraction(layer["activation"])
    full = Fraction(layer.get("backward", 2 * forward))
    weight = Fraction(layer.get("weight", full / 2))
    recompute, space = layer.get("recompute", False), layer.get("workspace", 0)
    stated = {"time": layer.get("recompute_time", forward), "activation": layer.get("kept", 0)}
    recomputed = recompute if isinstance(recompute, dict) else stated
    if not isinstance(space, dict):
        space = dict.fromkeys(("F", "B", "BW"), space)
    if isinstance(recomputes, tuple):
        modules = [
            module
            for module in layer["modules"]
            if module["name"] in recomputes and module.get("inside") not in recomputes
        ]
        retained = taken - sum(module["memory"] for module in modules)
        recomputed = {"time": sum(module["time"] for module in modules), "activation": retained}
        needed = max((module.get("workspace", 0) for module in modules), default=0)
        space = space | {kind: max(space.get(kind, 0), needed) for kind in ("B", "BW")}
    return {
        "forward": forward,
        "backward": full,
        "weight": weight,
        "backward_input": Fraction(layer.get("input", full - weight)),
        "activation": taken,
        "memory_b": Fraction(layer["memory_b"]),
        "static": Fraction(layer["static"]),
        "recompute_time": Fraction(recomputed["time"] if recomputes else 0),
        "kept": Fraction(recomputed["activation"]) if recomputes else taken,
        **{name: Fraction(space.get(kind, 0)) for name, kind in KINDS.items()},
    }


def _summed(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer with the sums of its phases as times."""
    ahead, back = layer["phases"]["F"], layer["phases"]["B"]
    partial = sum(phase["time"] for phase in back)
    weight = sum(phase.get("weight", 0) for phase in back)
    times = {"forward": sum(phase["time"] for phase in ahead), "backward": partial + weight}
    return layer | times | {"weight": weight, "input": partial}
