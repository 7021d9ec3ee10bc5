"""Options that derive a model from a config.json, declared once: `init --from` and `plan --from`.

A command with `DerivationGroup` has all options of its own table, and receives those that were
given as one mapping, `derivation`, by their names with `_`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from ppopt.cli.engines import STORAGE
from ppopt.cli.options import option, optional
from ppopt.cli.streams import note
from ppopt.errors import InputError
from ppopt.formats.typed_values import share, whole
from ppopt.problem.setting import Heading

if TYPE_CHECKING:
    from ppopt.derivation.derived_model import DerivedModel
    from ppopt.derivation.expert_loads import ExpertLoads
    from ppopt.problem.sequence_lengths import Lengths

INIT, PLAN = "init", "plan"
FROM = "from"
"""Name of the option with the config.json, without which all others are refused."""
_PREFIX = "derive_"
"""Prefix of the parameters: `from` is a keyword, and `context` is a parameter of typer."""


def _text(_: str, text: str) -> str:
    return text


def _share(name: str, text: str) -> float:
    return float(share(name, text))


def _imbalance(_: str, text: str) -> float | ExpertLoads:
    from ppopt.derivation.expert_loads import read_loads  # noqa: PLC0415  loads on use

    number = re.fullmatch(r"\s*([0-9]+(\.[0-9]*)?|\.[0-9]+)\s*", text)
    return float(text) if number else read_loads(Path(text))


def _lengths(name: str, text: str) -> Lengths:
    from ppopt.formats.documents import parse_json  # noqa: PLC0415  loads on use
    from ppopt.problem.sequence_lengths import read_lengths  # noqa: PLC0415  loads on use

    return read_lengths(parse_json(text, name), name)


def _names(_: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip().lower() for part in text.split(","))


def _overlap(option: str, text: str) -> tuple[str, ...]:
    """Names, or those that a trainer's file states."""
    from ppopt.formats import trainer_file  # noqa: PLC0415  loads on use

    stated = trainer_file.value_of(option, text)
    return _names(option, text) if stated is None else tuple(stated)


class DerivationOption(NamedTuple):
    """One option: its name, its value, and the commands that have it."""

    name: str
    placeholder: str
    meaning: str
    read: Callable[[str, str], Any] = _text
    """Reads one value from the name of the option and text."""
    commands: tuple[str, ...] = (INIT, PLAN)
    plan_meaning: str = ""
    """Meaning in `plan`, if that differs."""
    heading: Heading = Heading.DERIVATION
    listed: bool = False
    """Whether `plan` takes a list of values, with commas."""

    def parameter(self, command: str) -> Parameter:
        """Parameter of a command; without a placeholder, a flag."""
        flag_option = option(
            "LIST" if self.listed and command == PLAN else self.placeholder,
            (command == PLAN and self.plan_meaning) or self.meaning,
            self.heading,
            names=(f"--{self.name.replace('_', '-')}",),
        )
        kind, default = (str | None, None) if self.placeholder else (bool, False)
        return optional(_PREFIX + self.name, Annotated[kind, flag_option], default)

    def value(self, command: str, text: str | bool) -> Any:
        """Value of the option; raises InputError if the text is none."""
        if isinstance(text, bool):
            return text
        read = partial(self.read, self.name)
        if self.listed and command == PLAN:
            return tuple(read(part.strip()) for part in text.split(","))
        return read(text)


def _flag(name: str, meaning: str) -> DerivationOption:
    return DerivationOption(name, "", meaning)


def _number(
    name: str, meaning: str, commands: tuple[str, ...] = (INIT, PLAN), placeholder: str = "N"
) -> DerivationOption:
    return DerivationOption(name, placeholder, meaning, whole, commands)


def _search(
    name: str, placeholder: str, meaning: str, read: Callable[[str, str], Any] = _text
) -> DerivationOption:
    """An option of `plan` that says where combinations are searched and stored."""
    meaning = f"With --from: {meaning}"
    return DerivationOption(name, placeholder, meaning, read, (PLAN,), heading=Heading.SEARCH)


def _size(name: str, meaning: str, plan_default: str) -> DerivationOption:
    """A dimension of the parallelism, of which `plan` takes a list."""
    listed = f"{meaning}, one or several (default: {plan_default})."
    return _number(name, f"{meaning} (1).")._replace(plan_meaning=listed, listed=True)


OPTIONS = (
    DerivationOption(
        FROM,
        "CONFIG",
        "Derive the layers from the config.json, or the folder, of a Hugging Face model: Llama, "
        "Mistral, Mixtral, Qwen, DeepSeek, GLM, gpt-oss, Gemma, MiniMax, GPT-2 and their kin; any "
        "other whose keys are those of one of them.",
        plan_meaning="Also choose the parallelism: derive models from this config.json or folder. "
        "The options below need it.",
    ),
    DerivationOption(
        "gpu", "GPU", "Required: h100 or another (`ppopt init --gpu` lists them), or my-gpu.toml."
    ),
    _number("gpus", "Total number of GPUs (required).", (PLAN,)),
    _number("global_batch", "Sequences of a step, over all GPUs (required).", (PLAN,)),
    _number("devices", "Pipeline parallel size (4).", (INIT,)),
    _number("batches", "Microbatches of a step, per data rank (16).", (INIT,)),
    _size("tensor", "Tensor parallel size", "all within a node"),
    _size(
        "context",
        "Context parallel size",
        "all within a node with 4096 tokens or more per rank",
    ),
    _size("data", "Data parallel size", "all"),
    _size(
        "expert",
        "Expert parallel size, of data x context ranks (with --expert-tensor, of more)",
        "all divisors of the experts",
    ),
    _size("microbatch", "Sequences of a microbatch", "1,2,4"),
    _number("sequence", "Tokens of a sequence (4096)."),
    DerivationOption(
        "microbatch_tokens",
        "LIST",
        "Lengths of the documents of every microbatch of a data rank, as JSON: its tokens, or a "
        "list of lengths. Only combinations of as many microbatches, of one sequence each, remain.",
        _lengths,
        (PLAN,),
    ),
    DerivationOption(
        "precision", "NAME", "Number format of matrix products: bf16 (default), fp8 or nvfp4."
    ),
    DerivationOption(
        "fp8_recipe",
        "NAME",
        "Scaling of products in FP8, which sets the memory of weights and inputs under megatron: "
        "tensorwise (default), delayed, mxfp8 or blockwise.",
    ),
    DerivationOption(
        "framework",
        "NAME",
        "Kernels, launches and bytes of a parameter: megatron (default), deepspeed "
        "(Megatron-DeepSpeed), torch or torch-compile.",
    ),
    _number(
        "zero",
        "ZeRO stage: data and context parallel ranks share nothing, optimizer states (1, default), "
        "gradients too, parameters too (FSDP).",
        placeholder="0|1|2|3",
    ),
    _number(
        "shard",
        "Ranks of data x context over which --zero shards; their groups have copies (HSDP; all).",
    ),
    _number(
        "gradient_bytes",
        "Bytes of an element of gradients, in memory and in their reduction (as the framework has "
        "it: 4).",
        placeholder="2|4",
    ),
    DerivationOption(
        "reshard_after_forward",
        "NAME",
        "With --zero 3, whether every F and every backward gathers the weights of its layers: "
        "always, never (once in a step), or default (never with several pipeline devices).",
    ),
    DerivationOption(
        "context_type",
        "NAME",
        "Exchange of keys and values between context parallel ranks: ring (default), all-gather or "
        "all-to-all.",
    ),
    _flag(
        "no_sequence_parallel", "Tensor parallel ranks do not share the tokens between matrices."
    ),
    DerivationOption(
        "attention",
        "NAME",
        "Kernel of attention: fused (default), that of today's trainers; fa2 or fa3, "
        "FlashAttention-2 or 3; unfused, which writes scores to the memory of the GPU.",
    ),
    _flag("dropout", "Attention and feed-forward pass dropout, whose masks are kept."),
    DerivationOption(
        "overlap",
        "NAMES|FILE",
        "Exchanges that overlap with compute: tp (of tensor parallel ranks, with their product), "
        "dispatch (of tokens with experts, in pairs of F and BW), wgrad (with dispatch: W of a "
        "pair is delayed), grads and params (of data parallel ranks, with the last backward and "
        "the first F), or a file of Megatron-LM that says so; default: none.",
        _overlap,
        plan_meaning="Exchanges that overlap with compute, as for `ppopt init`. With dispatch, and "
        "with wgrad, the plan chooses for every combination whether they do; default: none.",
    ),
    DerivationOption(
        "loss",
        "NAME",
        "Loss of the vocabulary: default (as the framework computes it), fused (one "
        "kernel, on logits in BF16) or chunked (part by part; no logits are kept).",
    ),
    _flag("cuda_graphs", "CUDA graphs launch the kernels: the GPU never waits for the CPU."),
    _number("expert_tensor", "Tensor parallel size of experts (that of --tensor)."),
    DerivationOption(
        "expert_imbalance",
        "FACTOR|FILE",
        "Tokens of the expert rank with the largest load, relative to the mean (1); or a JSON file "
        "with the tokens of each expert, in one list or one per layer and step.",
        _imbalance,
    ),
    _number(
        "bf16_start", "Layers at the start that stay in BF16 with --precision fp8 or nvfp4 (0)."
    ),
    _number("bf16_end", "Layers at the end that stay in BF16 with --precision fp8 or nvfp4 (0)."),
    DerivationOption(
        "dispatcher",
        "NAME",
        "Exchange of tokens between experts: alltoall (default), or flex (DeepEP), which sends a "
        "token to a node once.",
    ),
    _number("gpus_per_node", "GPUs of a node (default: as the GPU is sold)."),
    _number(
        "lora",
        "Rank of low-rank adapters of attention and dense networks, which alone are trained (0: "
        "none).",
        placeholder="RANK",
    ),
    DerivationOption(
        "freeze", "NAMES", "Parts that are not trained: embedding, encoder, decoder, head.", _names
    ),
    _flag("no_mtp", "Leave out the modules that predict further tokens."),
    _number("images", "Images of a sequence, for models with an image encoder (1)."),
    _number(
        "encoder_sequence",
        "Tokens of a sequence of the encoder of T5 (default: those of --sequence, the decoder's).",
    ),
    DerivationOption(
        "efficiency",
        "SHARE",
        "Share of the GPU's peak that large matrix products reach (default: as the GPU has it).",
        _share,
        plan_meaning="Share of the GPU's peak that large matrix products reach, one for all or one "
        "for each of --tensor (default: as the GPU has it).",
        listed=True,
    ),
    DerivationOption(
        "calibrate",
        "MS|FILE",
        "Measured time of a step of 1F1B in milliseconds, or a YAML file of several with their "
        "settings; sets factors on the times of kernels and of communication.",
        commands=(INIT,),
    ),
    DerivationOption(
        "calibrate",
        "FILE",
        "YAML file of measured steps with their settings; sets factors on the times of kernels and "
        "of communication.",
        commands=(PLAN,),
    ),
    _flag(
        "explain",
        "Print the kernels and collectives of every layer, with their times, in place of the file.",
    )._replace(commands=(INIT,)),
    DerivationOption(
        "link", "LINK", "Link between devices (default: as the GPU has it).", commands=(INIT,)
    ),
    DerivationOption(
        "partition", "LIST", "Layers of every stage; see `ppopt solve --help`.", commands=(INIT,)
    ),
    _search(
        "jobs",
        "N",
        "processes that search combinations, with one worker each unless --workers is given "
        "(default: none; this process searches one after the other).",
        whole,
    ),
    _search("dask", "ADDRESS", "search combinations on the Dask scheduler at this address."),
    _search(
        "dask_scheduler_file",
        "FILE",
        "search combinations on the Dask scheduler that this file names.",
    ),
    _search(
        "storage",
        "URL",
        f"database of combinations, e.g. {STORAGE}: the same command continues.",
    ),
    _search("study_name", "NAME", f"name in --storage ({STORAGE}; default: made from the space)."),
)
"""All options, in the order of the help."""


Derivation = Mapping[str, Any]
"""The options that are given, by their names; values as `DerivationOption.value` reads them."""


class DerivationGroup(NamedTuple):
    """The options of a command's table, which it receives as a `Derivation`."""

    command: str
    name: str = "derivation"

    @property
    def _options(self) -> dict[str, DerivationOption]:
        """Options by the names of their parameters."""
        return {_PREFIX + each.name: each for each in OPTIONS if self.command in each.commands}

    def parameters(self, _: Collection[str]) -> Iterator[Parameter]:
        """The options of the table."""
        return (each.parameter(self.command) for each in self._options.values())

    def value(self, **values: Any) -> Derivation:
        """The options that are given."""
        return {
            each.name: each.value(self.command, values[parameter])
            for parameter, each in self._options.items()
            if values[parameter] not in (None, False)
        }


def derivation_fields(derivation: Derivation) -> dict[str, Any]:
    """Fields of a derived model and of its training: `no_x` is x = False."""
    if {"calibrate", "efficiency"} <= derivation.keys():
        raise InputError("efficiency: --calibrate scales times; leave one of them out")
    return {
        name.removeprefix("no_"): value if not name.startswith("no_") else False
        for name, value in derivation.items()
        if name != FROM
    }


def calibrated(model: DerivedModel, file: Path) -> tuple[DerivedModel, list[float]]:
    """The model with the times of the steps of a file, and their shares of communication."""
    from ppopt.studies.calibrate import (  # noqa: PLC0415  loads on use
        calibrate,
        few_steps,
        measured_shares,
        read_measured_steps,
    )

    rows = read_measured_steps(file)
    fitted = calibrate(model, rows)
    shares = measured_shares(fitted, rows)
    if remark := few_steps(shares):
        note(f"note: {remark}")
    return fitted, shares


def note_unlike_measured(model: DerivedModel, shares: Sequence[float]) -> None:
    """Note that a model has another share of communication than measured steps."""
    from ppopt.studies.calibrate import unlike_measured  # noqa: PLC0415  loads on use

    if remark := unlike_measured(model, shares):
        note(f"note: {remark}")


def init_command(derivation: Derivation) -> str:
    """The command line of `ppopt init` with these options, for a shell."""
    line = ["ppopt", INIT]
    for name, value in derivation.items():
        line.append(f"--{name.replace('_', '-')}")
        if value is not True:
            line.append(",".join(value) if type(value) is tuple else str(value))
    return shlex.join(line)


def refuse_without_configuration(derivation: Derivation) -> None:
    """Raise InputError if options that need --from are given without it."""
    flags = ", ".join(name.replace("_", "-") for name in derivation if name != FROM)
    if flags:
        raise InputError(f"{flags}: only with --from config.json; give it too")
