"""The user's own model: run, profiled, and refused by one line where its function is wrong."""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import cast

import pytest

from tests.packages import needed

torch = needed("torch")

from ppopt import Pipeline
from ppopt.errors import InputError, VerificationError
from ppopt.formats.config import parse_config, pipeline_of
from ppopt.problem import layout
from ppopt.problem.operation import OpKind
from ppopt.profiles import pipeline_file
from ppopt.torch import execution, job
from ppopt.torch.pipeline_runtime import WITHOUT_GRADIENT
from ppopt.torch.world import World
from tests.factories.schedules import build
from tests.torch.torch_jobs import RANKS, WrappedWorld, as_listed

pytestmark = pytest.mark.slow

FILE = Path(__file__).with_name("own_models.py")
DOCS = Path(__file__).parents[2] / "docs"
BATCHES = 4
REFUSED = {
    "number": "own_models.py:number: returns int, not a ppopt.torch.Job",
    "nothing": r"nothing\(4\) raised TypeError: nothing\(\) takes 0 positional arguments",
    "broken": r"broken\(4\) raised ValueError: no data \(line \d+\)",
    "missing": "own_models.py has no function missing",
    "empty": "modules is empty; give one at least",
    "one_module": "modules is one module; give a list of them",
    "no_modules": r"modules\[1\] is int, neither a torch.nn.Module nor a function that makes one",
    "no_target": "target is NoneType, no tensor",
    "ragged": r"target has the shape \(9, 8\); its first dimension must be a multiple of the 4 ",
    "ragged_mask": r"mask has the shape \(\); its first dimension must be a multiple of the 4",
    "wrong_shape": r"module 1 \(Linear\): its forward raised TypeError",
    "no_module_made": "module 0: its function returns dict, not a torch.nn.Module",
    "no_tensor": r"module 0 \(Tokens\): returns str; return tensors",
    "no_gradient": r"module 0 \(Cut\): no tensor that it returns requires a gradient",
    "broken_loss": "loss: it raised",
    "no_scalar": "loss: it returns no scalar tensor that requires a gradient",
}


GOOD = "good" if WITHOUT_GRADIENT else "plain"
"""The job with all that this PyTorch can run."""


def model(name: str, backend: str | None = None) -> execution.UserModel:
    return execution.UserModel(f"{FILE}:{name}", BATCHES, backend)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_functions(name: str) -> None:
    with pytest.raises(InputError, match=REFUSED[name]) as caught:
        job.boundaries(job.Modules(model(name).load(), "cpu"), BATCHES)
    assert "\n" not in str(caught.value) or name in ("wrong_shape", "broken_loss")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("job.py", "name the file and the function, my_job.py:build"),
        ("job.py:", "name the file and the function"),
        ("none.py:build", "there is no file none.py"),
        ("words.txt:build", "words.txt is no Python file; end it in .py"),
        ("error.py:build", r"importing it raised NameError: name .* is not defined \(line 2\)"),
        ("syntax.py:build", r"importing it raised SyntaxError: .* \(line 1\)"),
    ],
)  # fmt: skip
def test_wrong_files(
    spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("words.txt", ""), ("error.py", "\nundefined"), ("syntax.py", "def (")):
        Path(name).write_text(text)
    with pytest.raises(InputError, match=message):
        job.load_job(spec, 1)


@pytest.fixture(autouse=True)
def unimported() -> ModuleType | None:
    """The user's file does not stay imported from one test to the next."""
    return sys.modules.pop("ppopt_job", None)


def test_it_runs_by_turns_with_exact_gradients(world: World) -> None:
    """Mixed backwards on uneven placements; integers between stages, masks, two outputs."""
    placements = ([0, 1, 2, 3, 3], [2, 0, 1, 3, 1])
    schedules = [
        build(Pipeline(stages=5, batches=BATCHES, placement=hosts), Random(seed), "mixed")
        for seed, hosts in enumerate(placements)
    ]
    for ran in execution.run(world, schedules, model(GOOD), steps=2):
        assert ran.gradients == 2 * 5
        assert ran.difference <= 1e-5
        assert len(ran.steps) == 2
        assert {record.step for record in ran.records} == {0, 1}


def test_a_batch_is_handed_out_in_the_order_of_each_schedule(world: World) -> None:
    """Losses by microbatch tell orders apart; the weights are shared by both schedules."""
    hosts = [0, 1, 2, 3, 3]
    listed = Pipeline(stages=5, batches=BATCHES, placement=hosts, microbatch_times=[1, 3, 2, "0.5"])
    schedules = [
        build(pipeline, Random(1), "mixed") for pipeline in (listed, listed.reordered([2, 0, 3, 1]))
    ]
    for ran in execution.run(world, schedules, model(GOOD)):
        assert ran.gradients == 2 * 5
    wrapped = cast(World, WrappedWorld(world, as_listed))
    with pytest.raises(VerificationError, match="run: a loss differs from that of one process"):
        execution.run(wrapped, schedules, model(GOOD))


COUNTED = """
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.torch.own_models import Plain, PlainLast, plain

LOG = Path(__file__).with_suffix(".log")


def built(index, kind):
    with LOG.open("a") as log:
        log.write(f"{os.getpid()} {index}\\n")
    return kind()


def build(microbatches):
    kinds = enumerate([Plain, Plain, Plain, Plain, PlainLast])
    return replace(plain(microbatches), modules=[partial(built, *each) for each in kinds])
"""
"""A job that writes down which process builds which module."""


def modules_built(file: Path) -> list[list[int]]:
    """The modules that each process built, in ascending order."""
    by_process: dict[str, list[int]] = {}
    for line in file.with_suffix(".log").read_text().splitlines():
        process, index = line.split()
        by_process.setdefault(process, []).append(int(index))
    return sorted(sorted(indices) for indices in by_process.values())


@pytest.mark.parametrize("check", [True, False])
def test_a_process_builds_a_module_once(world: World, tmp_path: Path, check: bool) -> None:
    """Rank 0 builds all to run each once; the others those of their stages in either schedule."""
    file = tmp_path / "counted.py"
    file.write_text(COUNTED)
    schedules = [
        build(Pipeline(stages=5, batches=BATCHES, placement=hosts), Random(1), "mixed")
        for hosts in ([0, 1, 2, 3, 3], [2, 0, 1, 3, 1])
    ]
    counted = execution.UserModel(f"{file}:build", BATCHES)
    notes: list[str] = []
    for ran in execution.run(world, schedules, counted, check=check, note=notes.append):
        assert ran.gradients == (2 * 5 if check else 0)
        assert ran.difference <= 1e-5
    assert modules_built(file) == [[0, 1, 2, 3, 4], [0, 2], [1, 2, 4], [3, 4]]
    assert notes == [
        "loaded the model; building its modules on cpu, running each forward once",
        *["computing a step of the whole model in one process, to compare with"] * check,
        "running 2 steps of 2 schedules by turns",
    ]


def test_a_profile_builds_a_module_once(world: World, tmp_path: Path) -> None:
    file = tmp_path / "counted.py"
    file.write_text(COUNTED)
    counted = execution.UserModel(f"{file}:build", BATCHES)
    notes: list[str] = []
    execution.measure(world, counted, steps=1, note=notes.append)
    assert modules_built(file) == [[0, 1, 2, 3, 4], [2], [3], [4]]
    assert notes[-1] == "running 2 steps"


def test_a_module_is_built_on_its_device() -> None:
    """What the function makes never is on the CPU; `meta` stands for a GPU."""
    devices: list[str] = []

    class Noting(torch.nn.Linear):
        def reset_parameters(self) -> None:
            devices.append(self.weight.device.type)

    modules = job.Modules(replace(model(GOOD).load(), modules=[lambda: Noting(2, 2)]), "meta")
    assert modules[0] is modules[0]
    assert devices == ["meta"]


def test_the_trace_runs_on_the_device() -> None:
    """Of modules, batch and loss nothing stays on the CPU, where weights would be initialized."""
    loaded = job.load_job(f"{DOCS / 'examples' / 'small_transformer.py'}:build", BATCHES)
    modules = job.Modules(loaded, "meta")
    traced = job.boundaries(modules, BATCHES, range(8))
    assert traced == job.boundaries(job.Modules(loaded, "cpu"), BATCHES)
    assert traced.names == ["Embedding", *["Block"] * 6, "Head"]
    weights = [weight for module in modules for weight in module.parameters()]
    assert {weight.device.type for weight in weights} == {"meta"}
    assert len(weights) == 78


def test_modules_that_are_not_kept_are_freed() -> None:
    """Those that the job has as they are, too."""
    loaded = model(GOOD).load()
    modules = job.Modules(loaded, "cpu")
    freed, retained = weakref.ref(modules[2]), weakref.ref(modules[3])
    del loaded
    modules.keep([3])
    assert freed() is None
    assert retained() is modules[3]


def test_equal_stages_of_two_schedules_are_compiled_once() -> None:
    modules = job.Modules(model(GOOD).load(), "cpu")
    assert modules.stage(range(2), "eager") is modules.stage(range(2), "eager")
    assert modules.stage(range(2), "eager") is not modules.stage(range(2), None)
    assert modules.stage(range(2), None).layers[1] is modules.stage(range(1, 3), None).layers[0]


def test_layers_become_the_stages_of_the_partition(world: World) -> None:
    """Two modules in the first stage, one in each of the others."""
    layers = parse_config("layers: [{forward: 1, count: 5}]", ".yaml", "a.yaml")
    settings = {**layers, "stages": RANKS, "batches": BATCHES, "partition": [2, 1, 1, 1]}
    schedule = build(pipeline_of(settings), Random(1), "whole")
    (ran,) = execution.run(world, [schedule], model(GOOD), steps=1, check=False)
    assert ran.gradients == 0
    (ran,) = execution.run(world, [schedule], model(GOOD, "aot_eager"), steps=1)
    assert (ran.gradients, ran.difference <= 1e-5) == (10, True)


def test_a_random_module_is_found(world: World) -> None:
    schedule = build(Pipeline(stages=5, batches=BATCHES, placement=[0, 1, 2, 3, 3]), Random(1))
    with pytest.raises(VerificationError, match=r"the gradient of .* differs .* \(dropout\)"):
        execution.run(world, [schedule], model("dropout"))


def test_schedules_that_do_not_fit(world: World) -> None:
    four = build(Pipeline(stages=RANKS, batches=BATCHES), Random(1), "split")
    with pytest.raises(InputError, match="the job has 5 modules, the schedule 4 stages"):
        execution.run(world, [four], model(GOOD))
    with pytest.raises(InputError, match="a compiled module cannot split its backward"):
        execution.run(world, [four], model(GOOD, "aot_eager"))
    with pytest.raises(InputError, match=r"^module 0 \(Tokens\): returns str; return tensors$"):
        execution.run(world, [four], model("no_tensor")._replace(spec=f"{FILE}:one_of_tokens"))


def test_what_a_process_refuses_is_one_line(world: World) -> None:
    """Seen by the process of module 1 in its first forward; the others wait for it."""
    with pytest.raises(InputError, match="stage 1: PyTorch would lose gradients of") as caught:
        execution.measure(world, model("lost_gradient"), steps=1)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(WITHOUT_GRADIENT, reason="this PyTorch outputs integers")
def test_integers_are_refused_by_an_old_pytorch(world: World) -> None:
    with pytest.raises(InputError, match="this PyTorch wants a gradient of every tensor"):
        execution.measure(world, model("good"), steps=1)


def test_modules_are_profiled_as_layers(world: World) -> None:
    """A module outputs a tensor of 2 x 8 floats and two integers. F of the first four keeps what
    tanh returned and the product with the mask; weights and gradients: 2 x 72 floats."""
    measurements, names = execution.measure(world, model(GOOD), steps=2)
    layers = (["Layer"] * 4 + ["Last"]) if GOOD == "good" else (["Plain"] * 4 + ["PlainLast"])
    assert [layer.name for layer in names] == layers
    assert {layer.role for layer in names} == {"decoder"}
    integers = 2 * 8 if GOOD == "good" else 0
    assert [layer.output for layer in names] == [2 * 8 * 4 + integers] * 4 + [2 * 2 * 8 * 4]
    text = pipeline_file.dumps_layers(measurements, names, RANKS, description="mine", source="here")
    pipeline = pipeline_of(parse_config(text, ".yaml", "profile.yaml"))
    assert pipeline.model is not None
    assert [layer.name for layer in pipeline.model.layers] == layers
    assert (pipeline.num_devices, pipeline.batches) == (RANKS, BATCHES)
    static = 2 * 72 * 4 / 2**20
    for layer in pipeline.model.layers:
        assert float(layer.static) == pytest.approx(static, abs=1e-6)
        assert float(layer.activation) > float(layer.output) == float(layer.kept)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[job.TensorMeta]:
    return (job.TensorMeta(shape, dtype, requires_grad=True),)


TOKENS, VECTORS, SCORES = meta(4, 9, dtype=torch.int64), meta(4, 9, 8), meta(4, 9, 50)


@pytest.mark.parametrize(
    ("names", "metas", "roles"),
    [
        ("E B B H", [TOKENS, VECTORS, VECTORS, VECTORS, SCORES], "EttL"),
        ("B B B", [VECTORS, VECTORS, VECTORS, VECTORS], "ttt"),
        ("B B F", [VECTORS, VECTORS, VECTORS, VECTORS], "ttt"),
        ("B B B", [VECTORS, VECTORS, VECTORS, SCORES], "ttt"),
        ("E H", [TOKENS, VECTORS, SCORES], "EL"),
        ("M", [TOKENS, SCORES], "E"),
    ],
)
def test_roles_are_found(names: str, metas: list[tuple[job.TensorMeta]], roles: str) -> None:
    """The first takes words; the last is another module, and makes scores of vectors."""
    assert job.roles_of(names.split(), metas) == list(layout.roles(roles))


def test_roles_that_are_given_stand_in_the_profile(world: World) -> None:
    roles = layout.roles("Et*3L")
    _, layers = execution.measure(world, model(GOOD), steps=1, roles=roles)
    assert tuple(layer.role for layer in layers) == roles
    with pytest.raises(InputError, match="roles: they name 4 layers, the job has 5 modules"):
        execution.measure(world, model(GOOD), steps=1, roles=roles[1:])


def test_compiled_modules_are_profiled_whole(world: World) -> None:
    """Their memory is measured, too: tanh and product are kept by compiled code."""
    measurements, names = execution.measure(world, model(GOOD, "aot_eager"), steps=1)
    assert {kind for kind, _ in measurements.times} == {OpKind.F, OpKind.BW}
    text = pipeline_file.dumps_layers(measurements, names, RANKS, description="mine", source="here")
    assert "backward_kind: whole" in text
    eager = execution.measure(world, model(GOOD), steps=1)[0]
    for stage in range(5):
        assert 0 < measurements.memory[stage].activation <= 2 * eager.memory[stage].activation
