"""What trainers read of a schedule: it is the partition and the recompute that were predicted."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from random import Random
from typing import Any

from tests.cli.cli_run import run
from tests.fuzz import command, configs, layers
from tests.fuzz.category import Case, Category, Finding
from tests.oracles.configurations import partitions

ENDS = {"embedding": "embedding", "head": "lm_head"}
"""Role of an end -> a name that a profile gives it."""


class Exports(Category):
    """Models in layers, with and without roles, exported to Megatron-LM and to torchtitan."""

    name = "exports"
    goal = 100
    tries = 60

    def draw(self, rng: Random) -> Case:
        """Draw a model, its partition and its recompute; ends may be known by their names alone."""
        devices = rng.choice((2, 2, 3))
        fields = configs.draw(rng, devices=devices, stages=devices, more_layers=3, batches=2)
        for layer in fields["model"]:
            layer["name"] = ENDS.get(layer["role"], "block")
            if rng.random() < 0.3:
                layer["role"] = "decoder"
        counts = rng.choice(list(partitions(len(fields["model"]), devices)))
        fields |= {"partition": list(counts), "recompute": rng.choice(("none", "full", None))}
        return {"pipeline": fields, "to": rng.choice(("megatron-arguments", "torchtitan"))}

    def check(self, case: Case) -> Iterator[Finding]:
        """Export the schedule of 1F1B, and read what a trainer would."""
        fields, to = case["pipeline"], case["to"]
        which = layers.recomputed(fields)
        inner = [one for one, layer in zip(which, fields["model"], strict=True) if _inner(layer)]
        ends = [one for one, layer in zip(which, fields["model"], strict=True) if not _inner(layer)]
        known = all(_inner(layer) == (layer["role"] == "decoder") for layer in fields["model"])
        text, why = _exported(fields, to)
        if text is None:
            if known and len(set(inner)) < 2 and not any(ends):
                yield Finding(f"{to}-refused", why)
            return
        told = "recompute-granularity full" in text or 'mode = "full"' in text
        if set(inner) - {told}:
            yield Finding(f"{to}-recompute", f"full recompute: {told}, predicted {inner}")
        if any(ends):
            yield Finding(f"{to}-recompute-of-ends", "an end recomputes, which no trainer does")
        yield from (_torchtitan if to == "torchtitan" else _megatron)(fields, text)

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with simpler layers, as many of them."""
        for one in layers.smaller_cases(case):
            if len(one["pipeline"]["model"]) == len(case["pipeline"]["model"]):
                yield one


def _inner(layer: Mapping[str, Any]) -> bool:
    """Whether a layer is a transformer layer, by its name."""
    return bool(layer["name"] not in ENDS.values())


def _exported(fields: dict[str, Any], to: str) -> tuple[str | None, str]:
    """The text for a trainer; None and why where the product refuses to write it."""
    said = {{"model": "layers"}.get(key, key): value for key, value in fields.items() if value}
    with command.folder() as where:
        paths = [where / name for name in ("model.json", "made.json", "out.toml")]
        paths[0].write_text(json.dumps(said), encoding="utf-8")
        for words in (
            ("eval", "1f1b", "--config", paths[0], "-o", paths[1], "--quiet"),
            ("export", paths[1], "--to", to, "-o", paths[2]),
        ):
            code, _, err = run("", *words)
            if code:
                return None, err
        return paths[2].read_text(encoding="utf-8"), ""


def _stages(fields: dict[str, Any]) -> list[list[Mapping[str, Any]]]:
    cuts = pairwise(accumulate(fields["partition"], initial=0))
    return [fields["model"][start:end] for start, end in cuts]


def _torchtitan(fields: dict[str, Any], text: str) -> Iterator[Finding]:
    """Hold its modules against the layers of every stage, by their names."""
    said = tomllib.loads(text)["parallelism"]["module_fqns_per_model_part"]
    for stage, (parts, held) in enumerate(zip(said, _stages(fields), strict=True)):
        inner, blocks = sum(map(_inner, held)), sum(one.startswith("layers.") for one in parts)
        if inner != blocks:
            yield Finding("torchtitan-layers", f"stage {stage}: {parts}, {inner} layers predicted")


def _megatron(fields: dict[str, Any], text: str) -> Iterator[Finding]:
    """Hold its layout against the layers of every stage, by their names."""
    found = re.search(r'layout "([^"]*)"', text)
    if found is None:
        yield Finding("megatron-no-layout", text)
        return
    said = [stage.count("t") for stage in _expanded(found[1]).split("|")]
    held = [sum(map(_inner, stage)) for stage in _stages(fields)]
    if said != held:
        yield Finding("megatron-layers", f"{found[1]}, predicted {held}")


def _expanded(text: str) -> str:
    """A layout without repeats."""
    while (grown := re.sub(r"(\w|\([^()]*\))\*(\d+)", _repeated, text)) != text:
        text = grown
    return text.replace(",", "")


def _repeated(found: re.Match[str]) -> str:
    return found[1].strip("()") * int(found[2])
