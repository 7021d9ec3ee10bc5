"""Names in backticks exist: in docstrings and comments of `ppopt/`, and in guides for contributors.

A name is known if the function or class with that docstring uses it, or if any module defines it as
a function, class, field, attribute, key or value. Parameters and variables of other functions are
unknown.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "ppopt").rglob("*.py"))
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docs/architecture.md"]
TOOLS = "pyproject.toml", ".ci/run", "docs/scripts/prose.py", "tests/budgets.py", "tests/tiers.py"
"""Files that the pages explain, besides the package."""
DEFINITIONS = re.compile(
    r"(?:def|class) (\w+)|\.(\w+)|^([\w, ]+)(?:: .*)? = |^    ([A-Z_\d]+) = |^    (\w+): .*(?<!,)$"
    r"|[\"']([^\"'\s]+)[\"']",
    re.M,
)
COMMENT = re.compile(r"(?:^|(?<= ))# .*", re.M)
FILE = re.compile(r"[\w./-]+\.(?:py|md|json|yaml|toml)")
FOREIGN = """
PyTorch: CheckpointFunction CompiledFunctionBackward Schedule1F1B ScheduleInterleaved1F1B
ScheduleInterleavedZeroBubble ScheduleZBVZeroBubble _add_reduce_grad _add_send_recv
_add_unshard_reshard _batch_p2p _dump_csv
_get_1f1b_rank_ops _get_pipeline_order _validate_schedule _wait_batch_p2p args_chunk_spec
backward_requires_autograd device_id fullgraph kwargs_chunk_spec op_id output_merge_spec
pointToPoint syncStream user_annotation
torchtitan: ActivationCheckpointConfig ParallelismConfig Trainer _generate_llm_fqn_per_model_part
_get_pp_rank_to_stage_indices_mapping pipeline_parallel_unshard_lookahead
Megatron-LM, Megatron-Core: ActivationCheckpointingConfig ColumnParallelLinear LLaVAModel
MultiTokenPredictionBlock RowParallelLinear _add_training_args _checkpointed_forward minmax
forward_backward_pipelining_with_interleaving fp8_param_gather model_provider
otel-enabled parse_str_to_list process_mtp_loss unfused validate_args validate_layer_layout virtual
Transformer Engine: Float8Tensor set_save_original_input update_usage
DeepSpeed: REGEX _is_checkpointable partition_method steps_per_print wall_clock_breakdown
Primus: _async_send_recv_op _patch dump_pp_data pp_rank_R.json time_step
MaxText: num_pipeline_microbatches
Dask: Client allowed-failures
Tools: INFO PYTHONUNBUFFERED Up apt-get basicConfig docker logging nohup timeout ulimit yes
Examples: best.order.json config.json configuration_ forward_ms modeling_ my no_x rrggbb x2
references/my-schedule.json NAME RANDOM BW0 F0 F1 Et Ett Ettt LL MM tL tt ppop
Built from parts: listed_microbatch_memory listed_microbatch_times
"""
"""Names of other projects and tools, of examples, and of keys that are built from parts."""


def test_names_in_backticks_exist() -> None:
    unknown = [
        f"{path.relative_to(ROOT)}:{line}: {name} in `{quote}`"
        for path in [*MODULES, *PAGES]
        for line, text, own in texts(path)
        for quote in re.findall(r"`([^`]+)`", " ".join(text.split()))
        for name in unknown_names(quote, identifiers(own))
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("quote", "local", "unknown"),
    [
        ("register(pipeline)", "", []),
        ("register(pipline)", "", ["pipline"]),
        ("pipline >= 2", "def f(pipline): ...", []),
        ("ppopt solve --stages 4 --mem-limit", "", []),
        ("ppopt solve --stages 4 --mem-limt", "", ["limt"]),
        ("Instance.times", "", []),
        ("Instance.register", "", ["Instance.register"]),
        ("problem/pipeline.py", "", []),
        ("solver/pipeline.py", "", ["solver/pipeline.py"]),
        ("[class and microbatch]", "", []),  # the shape of an array
    ],
)
def test_unknown_names_are_reported(quote: str, local: str, unknown: list[str]) -> None:
    assert list(unknown_names(quote, identifiers(local))) == unknown


def unknown_names(quote: str, local: Set[str]) -> Iterator[str]:
    """Names of a quote that neither the code of its module uses nor any module defines."""
    if FILE.fullmatch(quote) and quote not in FOREIGN.split():
        known = any(f"/{file}".endswith(f"/{quote}") for file in files())
        yield from () if known else (quote,)
        return
    for name in [] if quote.startswith("[") else re.findall(r"\b[A-Za-z_]\w*", quote):
        if name not in local and name not in definitions():
            yield name
    for owner, attribute in re.findall(r"\b([A-Z]\w+)\.([a-z]\w*)", quote):
        if attribute in definitions() and attribute not in members().get(owner, {attribute}):
            yield f"{owner}.{attribute}"


@cache
def definitions() -> Set[str]:
    """Names that every text may use: functions, classes, fields, attributes, keys, files."""
    names = DEFINITIONS.findall("\n".join(map(code, MODULES)))
    known = [FOREIGN, *files(), *dir(builtins), *keyword.kwlist, *map("\n".join, names)]
    return identifiers("\n".join(known))


@cache
def members() -> dict[str, Set[str]]:
    """The words in the code of every class of `ppopt/` that inherits nothing."""
    return {
        node.name: identifiers(own)
        for path in MODULES
        for node, own in statements(path)
        if isinstance(node, ast.ClassDef) and not node.bases
    }


@cache
def files() -> list[str]:
    folders = ("ppopt", "tests", "benchmarks", "docs", "models")
    paths = [*ROOT.iterdir(), *(file for name in folders for file in (ROOT / name).rglob("*"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def texts(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, text and code of every docstring and comment of a module, or of a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        prose = re.sub(r"^```.*?^```", "", source, flags=re.M | re.S)
        yield from ((1, part, code(path)) for part in prose.split("\n\n"))
        return
    for node, own in statements(path):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text, own
    for line, text in enumerate(source.splitlines(), 1):
        yield from ((line, comment, code(path)) for comment in COMMENT.findall(text))


def statements(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Every statement, with the code of the top-level function or class in which it is."""
    lines = code(path).splitlines()
    imports = "\n".join(re.findall(r"^ *(?:from|import) (?:[^(\n]*\n|[^)]*\))", code(path), re.M))
    for part in tree(path).body:
        is_definition = isinstance(part, ast.FunctionDef | ast.ClassDef)
        own = "\n".join([*lines[part.lineno - 1 : part.end_lineno], imports])
        for node in _nested(part):
            yield node, own if is_definition else code(path)


@cache
def code(path: Path) -> str:
    """The lines of a module without docstrings and comments."""
    if path.suffix == ".md":
        tools = [*map(ROOT.joinpath, TOOLS), *(ROOT / "tests" / "fuzz").glob("*.py")]
        return "\n".join(path.read_text(encoding="utf-8") for path in tools)
    lines = COMMENT.sub("", path.read_text(encoding="utf-8")).splitlines()
    for part in tree(path).body:
        for node in _nested(part):
            match node:
                case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                    lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines)


def _nested(node: ast.stmt) -> Iterator[ast.stmt]:
    yield node
    for field in ("body", "orelse"):
        for child in getattr(node, field, ()):
            yield from _nested(child)


@cache
def identifiers(text: str) -> Set[str]:
    return frozenset(re.findall(r"\w+", text))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
