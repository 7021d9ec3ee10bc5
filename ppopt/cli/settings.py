"""The options that commands share, and what they amount to together with --model and --config."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ppopt.cli.files import Target, writable
from ppopt.errors import InputError
from ppopt.formats.fields import shown
from ppopt.problem.pipeline import Pipeline

_WHOLE = re.compile(r"[-+]?[0-9]{1,30}", re.ASCII)


@dataclass(frozen=True)
class Settings:
    """Canonical settings (see `ppopt.formats.config`) and where the results go."""

    values: dict[str, Any]
    output: tuple[Target, ...]
    json: bool
    quiet: bool

    def pipeline(self, default: Pipeline | None = None) -> Pipeline:
        """Build the pipeline described; the default one where none is, with the limit given."""
        from ppopt.formats.config import PIPELINE_FIELDS, pipeline_of  # noqa: PLC0415  commands load on use

        given = self.values.keys() & PIPELINE_FIELDS
        if default is None or given - {"mem_limit"}:
            described = pipeline_of(self.values)
            if not self.quiet:
                _note_slow_pairs(described)
            return described
        return replace(default, mem_limit=self.values["mem_limit"]) if given else default

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting of the run, or the default where it is not given."""
        found = self.values.get(name)
        return default if found is None else found


def _note_slow_pairs(pipeline: Pipeline) -> None:
    """Say where an F and a BW as one take longer than one after the other: that may be a slip."""
    from ppopt.problem.exact import plain  # noqa: PLC0415  commands load on use

    both = zip(pipeline.overlap or (), pipeline.forward, pipeline.backward, strict=False)
    slow = [(stage, pair, f + bw) for stage, (pair, f, bw) in enumerate(both) if pair > f + bw]
    if slow:
        stage, pair, apart = slow[0]
        more = f", as in {len(slow) - 1} more" if len(slow) > 1 else ""
        print(
            f"note: overlap_times: stage {stage}: {plain(pair)} is above F + BW = "
            f"{plain(apart)}{more}: such a pair loses time; only strategies that pair make it",
            file=sys.stderr,
        )


def _option(*names: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, metavar=metavar, show_default=False)


def shared(
    config: Annotated[
        Path | None,
        _option("--config", help="YAML, JSON or TOML file; flags override it.", metavar="FILE"),
    ] = None,
    model: Annotated[
        str | None, _option("--model", help="A ready pipeline; see `ppopt models`.", metavar="NAME")
    ] = None,
    stages: Annotated[
        str | None,
        _option("--stages", help="Devices P (with a placement list: stages).", metavar="P"),
    ] = None,
    batches: Annotated[
        str | None, _option("--batches", help="Microbatches M.", metavar="M")
    ] = None,
    chunks: Annotated[
        str | None, _option("--chunks", help="Stages per device: cuts each share.", metavar="V")
    ] = None,
    placement: Annotated[
        str | None,
        _option(
            "--placement", help="linear, interleaved, v, or devices 0,1,1,0.", metavar="NAME|LIST"
        ),
    ] = None,
    forward_times: Annotated[
        str | None,
        _option("--forward-times", help="F per stage, or one for all (1).", metavar="LIST"),
    ] = None,
    backward_times: Annotated[
        str | None, _option("--backward-times", help="Full backward BW (2 F).", metavar="LIST")
    ] = None,
    weight_times: Annotated[
        str | None, _option("--weight-times", help="W (half of BW); B = BW - W.", metavar="LIST")
    ] = None,
    p2p_time: Annotated[
        str | None, _option("--p2p-time", help="Delay between devices (0).", metavar="TIME")
    ] = None,
    activation: Annotated[
        str | None, _option("--activation", help="Memory F takes, per stage (1).", metavar="LIST")
    ] = None,
    memory_b: Annotated[
        str | None, _option("--memory-b", help="Signed change of memory by B (0).", metavar="LIST")
    ] = None,
    static: Annotated[
        str | None, _option("--static", help="Memory always held, per stage (0).", metavar="LIST")
    ] = None,
    mem_limit: Annotated[
        str | None,
        _option(
            "--mem-limit",
            help="Memory limit: one number, or one per device; bare: the largest device peak of "
            "1F1B, one route's static memory included.",
            metavar="[LIST]",
        ),
    ] = None,
    overlap_times: Annotated[
        str | None,
        _option(
            "--overlap-times",
            help="F and BW of a stage run as one (F + BW), at least the larger; by strategies that "
            "pair them and by searches. Of two stages: both alone less the smaller of what each "
            "saves, at least the larger; a B saves what BW would.",
            metavar="LIST",
        ),
    ] = None,
    routes: Annotated[
        str | None,
        _option("--routes", help="2: half of the microbatches run the other way (1).", metavar="N"),
    ] = None,
    slices: Annotated[
        str | None,
        _option("--slices", help="Parts of a microbatch along the sequence.", metavar="Q"),
    ] = None,
    group_size: Annotated[
        str | None,
        _option(
            "--group-size",
            help="Microbatches per group of interleaved strategies (the least, P or more, that "
            "leaves 0, P or more: P where P divides M).",
            metavar="N",
        ),
    ] = None,
    waves: Annotated[
        str | None, _option("--waves", help="Waves of hanayo (2).", metavar="N")
    ] = None,
    objective: Annotated[
        str | None,
        _option("--objective", help="makespan (default) or device-span.", metavar="NAME"),
    ] = None,
    fused: Annotated[bool, _option("--fused", help="Full backwards BW only, no split.")] = False,
    time_limit: Annotated[
        str | None, _option("--time-limit", help="Seconds to search (60).", metavar="SECONDS")
    ] = None,
    workers: Annotated[
        str | None, _option("--workers", help="Processors to search with (all).", metavar="N")
    ] = None,
    seed: Annotated[
        str | None, _option("--seed", help="Seed of the search (0).", metavar="N")
    ] = None,
    output: Annotated[
        list[str] | None,
        _option(
            "-o",
            "--output",
            help="File to write: .html, .json or .csv (order for PyTorch); repeatable.",
            metavar="FILE",
        ),
    ] = None,
    json: Annotated[bool, _option("--json", help="One JSON object on stdout.")] = False,
    quiet: Annotated[bool, _option("--quiet", help="No progress and no table.")] = False,
) -> Settings:
    """Merge model, config file and flags, the later over the earlier."""
    from ppopt.formats.config import canonical, read_config  # noqa: PLC0415  commands load on use
    from ppopt.formats.models import read_model  # noqa: PLC0415

    flags = {
        "stages": _whole("stages", stages),
        "batches": _whole("batches", batches),
        "chunks": _whole("chunks", chunks),
        "placement": _placement(placement),
        "forward_times": _list(forward_times),
        "backward_times": _list(backward_times),
        "weight_times": _list(weight_times),
        "p2p_time": p2p_time,
        "activation": _list(activation),
        "memory_b": _list(memory_b),
        "static": _list(static),
        "mem_limit": _list(mem_limit),
        "overlap_times": _list(overlap_times),
        "routes": _whole("routes", routes),
        "slices": _whole("slices", slices),
        "group_size": _whole("group_size", group_size),
        "waves": _whole("waves", waves),
        "objective": objective,
        "fused": fused or None,
        "time_limit": time_limit,
        "workers": _whole("workers", workers),
        "seed": _whole("seed", seed),
        "output_file": output or None,
    }
    merged: dict[str, Any] = {} if model is None else read_model(model)
    for layer in ({} if config is None else read_config(config), canonical(flags)):
        merged = _over(merged, layer)
    return Settings(merged, writable(merged.get("output") or []), json, quiet)


def _over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Settings of both, the upper first; a new full backward makes an older B void."""
    void = {"backward_input"} if "backward" in upper else set()
    return {name: value for name, value in lower.items() if name not in void} | upper


def _whole(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not _WHOLE.fullmatch(text):
        raise InputError(f"{name}: {shown(text)} is not a whole number of up to 30 digits")
    return int(text)


def _list(text: str | None) -> Any:
    if text is None or "," not in text:
        return text
    return [part.strip() for part in text.split(",")]


def _placement(text: str | None) -> Any:
    if text is None or not ("," in text or text.strip().isdigit()):
        return text
    parts = [part.strip() for part in text.split(",")]
    for stage, part in enumerate(parts):
        if not (part.isascii() and part.isdigit() and len(part) < 9):
            raise InputError(
                f"placement: stage {stage}: {part!r} is not a device number (0, 1, ...)"
            )
    return [int(part) for part in parts]
