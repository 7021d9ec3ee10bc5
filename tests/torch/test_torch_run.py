"""PyTorch runs our schedules on four gloo processes: gradients, traps, files that PyTorch wrote."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ppopt.problem.backward_kind import BackwardKind
from tests.packages import needed

torch = needed("torch")
schedules = needed("torch.distributed.pipelining.schedules")

from ppopt import Pipeline, evaluate, solve, verify
from ppopt.errors import InputError, NotApplicableError, RunError, VerificationError
from ppopt.formats import torch_csv
from ppopt.formats.fields import abbreviated
from ppopt.formats.loader_order import file_beside, read_beside
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.profiles.estimate import Record, StageMemory, divided
from ppopt.schedule import timing
from ppopt.solver.parameters import RoundParams, SolveParams
from ppopt.strategies import names
from tests.factories.schedules import build
from tests.torch import torch_jobs
from tests.torch.torch_jobs import RANKS, WrappedWorld, run_sleeping

import ppopt.torch  # isort: skip
from ppopt.torch import execution, probe
from ppopt.torch.pipeline_runtime import DYNAMIC_METADATA, REDUCES, WITHOUT_GRADIENT
from ppopt.torch.world import World
from tests.factories.tables import besides_of, changed

pytestmark = pytest.mark.slow


def test_this_version_is_said_to_be_tested() -> None:
    assert torch.__version__.split("+")[0] in ppopt.torch.TESTED


UNEQUAL = Pipeline(
    stages=RANKS,
    batches=6,
    forward=[3, 5, 4, 7],
    backward=[7, 9, 11, 13],
    weight=[2, 5, 4, 6],
    p2p=1,
)
EXPLICIT = Pipeline(stages=6, batches=5, placement=[2, 0, 3, 1, 1, 2], forward=[1, 2, 1, 3, 1, 2])
SOLVED = {
    "unequal stages, odd limits": (UNEQUAL, [3, 4, 2, 1]),
    "v": (Pipeline(stages=RANKS, batches=6, placement="v"), "1f1b"),
    "explicit placement": (EXPLICIT, 4),
    "fused": (replace(UNEQUAL, batches=5), None),
}


@pytest.mark.parametrize("strategy", names())
def test_strategies(world: World, strategy: str) -> None:
    """Every strategy there is runs, or is refused for what PyTorch lacks."""
    schedule = evaluate(Pipeline(stages=RANKS, batches=8), strategy)
    pipeline = schedule.pipeline
    if pipeline.routes == 2 or pipeline.num_slices > 1:
        with pytest.raises(NotApplicableError, match=r"two routes put|no slices"):
            run_sleeping(world, schedule)
        return
    ran = run_sleeping(world, schedule)
    assert ran.difference <= 1e-12
    assert ran.gradients == 2 * pipeline.num_stages


def test_what_is_run_is_more_than_what_is_refused() -> None:
    """The strategies of one route and whole microbatches, by name."""
    assert {"1f1b", "zb-1p", "interleaved", "zbv", "hanayo", "v-half"} <= set(names())


@pytest.mark.parametrize("name", SOLVED)
def test_solved(world: World, name: str) -> None:
    pipeline, limit = SOLVED[name]
    result = solve(
        pipeline,
        mem_limit=limit,
        time_limit=600,
        workers=1,
        params=SolveParams(rounds=RoundParams(max_rounds=2)),
        backward_kind=BackwardKind.uniform(fused=name == "fused"),
    )
    assert result.schedule is not None
    assert run_sleeping(world, result.schedule).difference <= 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_any_valid_schedule(world: World, seed: int) -> None:
    """Random orders, placements with all four devices, whole and split backwards mixed, and
    overlapped pairs, which PyTorch runs as two."""
    random = Random(seed)
    hosts = [*range(RANKS), *(random.randrange(RANKS) for _ in range(random.randrange(4)))]
    random.shuffle(hosts)
    pipeline = Pipeline(stages=len(hosts), batches=random.randint(1, 6), placement=hosts)
    schedule = build(pipeline, random, "mixed", paired=seed % 2 == 0)
    ran = run_sleeping(world, schedule)
    assert ran.difference <= 1e-12
    kinds = {(record.kind, record.stage, record.microbatch) for record in ran.records}
    assert kinds == {row[:3] for row in schedule.rows()}


FROZEN = {
    "all": Pipeline(stages=RANKS, batches=3, frozen=True),
    "in front": replace(UNEQUAL, frozen=[True, True, False, False]),
    "in front, and transfers within a rank": Pipeline(
        stages=6, batches=3, placement=[2, 0, 1, 1, 3, 2], frozen=[True] * 3 + [False] * 3
    ),
    "between": replace(UNEQUAL, frozen=[False, True, False, True]),
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_stages(world: World, name: str) -> None:
    """A frozen layer has no gradient, and all others have that of one process."""
    pipeline = FROZEN[name]
    schedule = build(pipeline, Random(1), "mixed")
    ran = run_sleeping(world, schedule)
    trained = [stage for stage, frozen in enumerate(pipeline.frozen_stages) if not frozen]
    assert ran.gradients == 2 * len(trained)
    ops = {record.op for record in ran.records if record.stage in trained}
    assert ops == {row.op for row in schedule.rows() if row.stage in trained}


UNLIKE = replace(UNEQUAL, microbatch_times=[1, 4, 2, 1, 3, "0.5"], order="search")


class TestMicrobatchesThatDiffer:
    @pytest.mark.parametrize("strategy", ["1f1b", "zb-h1"])
    def test_every_operation_takes_the_time_of_its_microbatch(
        self, world: World, strategy: str
    ) -> None:
        """On clocks that sleep alone moves: as long as predicted, operation by operation.

        1F1B ends on rank 0, where the next step begins: its clock is no earlier than the others.
        """
        schedule = evaluate(UNLIKE, strategy)
        assert isinstance(schedule.pipeline.order, tuple)
        wrapped = WrappedWorld(world, torch_jobs.slept)
        ran = run_sleeping(wrapped, schedule, steps=1, seconds_per_unit=0.004)
        predicted = execution.predicted_schedule(schedule)
        if strategy == "1f1b":
            assert ran.steps == (0.004 * float(execution.predicted_makespan(schedule)),)
        ticks = 0.004 * 1e9 / predicted.pipeline.ticks.per_unit
        lengths = {row.op: round((row.end - row.start) * ticks) for row in predicted.rows()}
        assert {record.op: record.end - record.start for record in ran.records} == lengths

    def test_the_exported_files_give_the_same_losses_and_gradients(
        self, world: World, tmp_path: Path
    ) -> None:
        """PyTorch runs the .csv; the loader hands out microbatches as the file next to it says."""
        schedule, path = evaluate(UNLIKE, "zb-h1"), tmp_path / "a.csv"
        path.write_text(torch_csv.order_csv(schedule))
        ((beside, text),) = file_beside(path, schedule).items()
        beside.write_text(text)
        assert read_beside(path, 6) == ppopt.torch.loader_order(schedule) == schedule.pipeline.order
        ran = run_sleeping(world, schedule, text=path.read_text())
        assert ran.difference <= 1e-12
        with pytest.raises(VerificationError, match="run: a loss differs from that of one process"):
            run_sleeping(WrappedWorld(world, torch_jobs.as_listed), schedule, text=path.read_text())

    def test_an_own_order_of_the_last_stage(self, world: World) -> None:
        """Its forwards number the microbatches for PyTorch, and for the data loader."""
        uniform = evaluate(replace(UNLIKE, microbatch_times=2, order="given"), "1f1b")
        turned = changed(uniform, microbatch=5 - uniform.microbatch)
        assert ppopt.torch.loader_order(turned) == (5, 4, 3, 2, 1, 0)
        assert run_sleeping(world, turned).difference <= 1e-12
        with pytest.raises(VerificationError, match="run: a loss differs"):
            run_sleeping(WrappedWorld(world, torch_jobs.as_listed), turned)


ALL_GRADIENTS = (
    ": this PyTorch wants a gradient of every tensor between stages; give all requires_grad=True, "
    "or take 2.13 for integers"
)


class TestTraps:
    """What PyTorch takes without a word and gets wrong: refused by us, and seen by the check."""

    LATE = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1F1,1I0,1W0,1I1,1W1\n2F0,2F1,2I0,2W0,2I1,2W1\n"
    LAST = "3F1,3F0,3I0,3W0,3I1,3W1\n"
    """The last stage runs microbatch 1 first: its losses are looked up by their place."""

    def test_losses_out_of_order(self, world: World) -> None:
        text = self.LATE.replace("F0,1F1", "F1,1F0").replace("F0,0F1", "F1,0F0")
        text = text.replace("F0,2F1", "F1,2F0") + self.LAST
        if WITHOUT_GRADIENT:
            with pytest.raises(VerificationError, match="differs from that of one process"):
                torch_jobs.run_text(world, text, range(RANKS), 2)
        else:  # PyTorch before 2.13 notices it
            with pytest.raises(RunError, match="One of the differentiated Tensors"):
                torch_jobs.run_text(world, text, range(RANKS), 2)
        with pytest.raises(InputError, match="would give wrong gradients"):
            torch_csv.parse_order(text, "a.csv")

    def test_our_export_renames(self, world: World) -> None:
        """The same order as a schedule is written with other numbers, and runs right."""
        text = (self.LATE + self.LAST).replace("3F1,3F0", "3F0,3F1")
        order = torch_csv.parse_order(text, "a.csv")
        schedule = torch_csv.schedule(order, {})
        turned = changed(schedule, microbatch=1 - schedule.microbatch)
        assert verify(turned) == []
        assert torch_csv.order_csv(turned) == text
        assert run_sleeping(world, turned).difference <= 1e-12

    def test_deferred_receives(self, world: World) -> None:
        schedule = evaluate(Pipeline(stages=RANKS, batches=6), "gpipe")
        result = solve(Pipeline(stages=RANKS, batches=6, placement="v"), mem_limit="1f1b")
        text, hosts = torch_csv.order_csv(result.schedule), result.schedule.pipeline.hosts[0]
        with pytest.raises(InputError, match="defer_pp_recv: it gives wrong gradients"):
            ppopt.torch.runtime([], schedule, print, defer_pp_recv=True)
        assert torch_jobs.run_text(world, text, hosts, 6) <= 1e-12
        if "defer_pp_recv" in inspect.getsource(schedules):  # PyTorch 2.13 and newer
            with pytest.raises(VerificationError, match="differs from that of one process"):
                torch_jobs.run_text(world, text, hosts, 6, defer_pp_recv=True)

    def test_stages_in_any_order(self, world: World) -> None:
        """PyTorch wants them ascending; a V given the other way round runs all the same."""
        schedule = evaluate(Pipeline(stages=RANKS, batches=4), "zbv")
        assert run_sleeping(WrappedWorld(world, torch_jobs.turned), schedule).difference <= 1e-12

    def test_two_routes(self) -> None:
        schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
        mirrored = replace(schedule, pipeline=Pipeline(stages=2, batches=2, routes=2))
        for refuses in (ppopt.torch.placement, torch_csv.order_csv):
            with pytest.raises(NotApplicableError, match="two routes put a stage on two"):
                refuses(mirrored)

    def test_stages_that_do_not_go_with_the_schedule(self, world: World) -> None:
        fitting = [
            evaluate(Pipeline(stages=stages, batches=2), strategy)
            for stages, strategy in ((RANKS, "1f1b"), (2, "1f1b"), (RANKS, "zb-h1"))
        ]
        refusals = world.run(torch_jobs.refusals, [fitting] * RANKS)
        for rank, messages in enumerate(refusals):
            assert messages == [
                "stages: none is given; build those of placement(schedule)[rank]",
                "stages: str is no torch.distributed.pipelining.PipelineStage",
                f"stages: rank {rank} builds {(rank + 1) % RANKS}, the schedule places {rank} "
                "there; see ppopt.torch.placement",
                "stages: they are of 8 stages, the schedule of 4",
                "stages: the process group has 4 ranks, the schedule 2 devices; start one process "
                "per device",
                f"stage {rank}: {'out' if rank == 0 else 'in'}put_args"
                + (
                    " need requires_grad=True, or no gradient passes between the stages"
                    if WITHOUT_GRADIENT
                    else ALL_GRADIENTS
                ),
            ] + [
                "stage 1: a compiled module cannot split its backward, PyTorch would run it twice; "
                "leave torch.compile out, or solve with --backward whole"
            ] * (2 if rank == 1 else 0)

    def test_what_the_first_forward_shows(self, world: World) -> None:
        """A compiled function in a plain module, a function of both gradients, a tensor that the
        metadata call free of gradients, and weights that no input reaches."""
        split = evaluate(Pipeline(stages=RANKS, batches=2), "zb-h1")
        outcome = world.run(torch_jobs.first_forwards, [(split,)] * RANKS)[1]
        assert outcome == [
            "InputError: stage 1: a compiled module cannot split its backward, PyTorch would run "
            "it twice; leave torch.compile out, or solve with --backward whole",
            "UserWarning: stage 1: _TwiceBackward computes the gradients of inputs and weights at "
            "once, so a split backward runs it twice: in B and in W",
            "InputError: stage 1: output 0 is torch.float32 [2, 2] with a gradient, output_args "
            "says torch.float32 [2, 2] without a gradient"
            if WITHOUT_GRADIENT
            else f"InputError: stage 1: output_args{ALL_GRADIENTS}",
            "InputError: stage 1: returns 2 tensors, output_args has 1"
            if DYNAMIC_METADATA
            else "PipeliningShapeError: Stage 1 forward outputs: Number of values (2) does not "
            "match expected number (1)",
            "InputError: stage 1: PyTorch would lose gradients of bias in a split backward: an "
            "output depends on it and on no input with a gradient; make that output in the first "
            "stage, or solve with --backward whole",
        ]

    def test_gradients_of_an_earlier_step(self, world: World) -> None:
        schedule = evaluate(Pipeline(stages=RANKS, batches=3), "1f1b")
        for message in world.run(torch_jobs.two_steps, [(schedule,)] * RANKS):
            assert "PyTorch would divide them by the microbatches again: call zero_grad" in message


class TestFilesOfPyTorch:
    """PyTorch's own schedule classes, dumped by themselves, are read, verified and evaluated."""

    CLASSES = (
        ("ScheduleLoopedBFS", 2, "loop"),
        ("ScheduleInterleaved1F1B", 2, "loop"),
        ("ScheduleInterleavedZeroBubble", 2, "loop"),
        ("ScheduleZBVZeroBubble", 2, "v"),
        ("ScheduleDualPipeV", 2, "v"),
    )

    @pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
    @pytest.mark.parametrize("case", CLASSES, ids=lambda case: case[0])
    def test_dumped(self, world: World, case: tuple[str, int, str], form: str) -> None:
        text = world.run(torch_jobs.dump, [(*case, form)] * RANKS)[0]
        order = torch_csv.parse_order(text, "torch.csv")
        schedule = torch_csv.schedule(order, {"forward": 3, "backward": 6})
        assert verify(schedule) == []
        assert schedule.pipeline.num_stages == 2 * RANKS
        assert schedule.pipeline.placement == ("v" if case[2] == "v" else "interleaved")
        assert schedule.pipeline.batches == 8

    def test_interleaved_is_ours(self, world: World) -> None:
        """PyTorch's interleaved 1F1B is Megatron's, in groups of as many microbatches as ranks."""
        text = world.run(
            torch_jobs.dump, [("ScheduleInterleaved1F1B", 2, "loop", "compute_only")] * RANKS
        )[0]
        order = torch_csv.parse_order(text, "torch.csv")
        ours = evaluate(Pipeline(stages=RANKS, batches=8), "interleaved")
        assert torch_csv.order_csv(torch_csv.schedule(order, {})) == torch_csv.order_csv(ours)

    def test_its_1f1b_is_off_by_one(self, world: World) -> None:
        """`Schedule1F1B.pipeline_order` numbers the last rank's forwards from 1 (torch 2.13)."""
        text = world.run(torch_jobs.dump, [("Schedule1F1B", 1, "loop", "order")] * RANKS)[0]
        assert "3F8" in text
        order = torch_csv.parse_order(text, "torch.csv")
        ours = evaluate(Pipeline(stages=RANKS, batches=8), "1f1b")
        assert torch_csv.order_csv(torch_csv.schedule(order, {})) == torch_csv.order_csv(ours)


class TestMeasure:
    def test_the_probe_measures_everything(self, world: World) -> None:
        """Every time is found again, stage 0's as it really splits: a rank's clock is its sleeps.

        A transfer takes 2 units, after which the receiver's clock is no earlier.
        """
        from ppopt.profiles.estimate import profile  # noqa: PLC0415

        hosts = [0, 1, 2, 3, 3]
        schedule = probe(4, hosts)
        timed = replace(
            schedule.pipeline, forward=[4, 6, 8, 10, 6], backward=[13, 16, 18, 20, 15],
            weight=[5, 6, 9, 9, 7], backward_input=None, p2p=2,
        )  # fmt: skip
        sleepless = WrappedWorld(world, torch_jobs.slept)
        ran = run_sleeping(
            sleepless, timing.schedule(timed, schedule.orders), steps=2, seconds_per_unit=0.006
        )
        profiled = profile(ran.records)
        assert profiled.hosts == tuple(hosts)
        wanted = ppopt.torch.as_run(timed).costs
        costs = profiled.costs(6 * 10**6)
        for field in ("forward", "backward", "weight", "backward_input"):
            assert tuple(costs[field]) == getattr(wanted, field)
        assert profiled.p2p.time == 2 * 6 * 10**6

    def test_a_trace_of_the_profiler_of_pytorch(self, world: World) -> None:
        """Its ranges hold the waits for receives: they begin before their input was there.

        Without these, none does, and none is shorter than what its stage slept, in units of 2 ms:
        F 8 to 24, B of 16 and W of 10 (stage 0: nothing and 26).
        """
        from ppopt.profiles.estimate import profile  # noqa: PLC0415
        from ppopt.profiles.readers.torch_profiler import parse_trace, without_waits  # noqa: PLC0415

        pipeline = Pipeline(
            stages=RANKS, batches=4, forward=[8, 12, 16, 24], backward=26, weight=10
        )
        texts = world.run(torch_jobs.traced, [(evaluate(pipeline, "zb-h1"),)] * RANKS)
        read = [parse_trace(text, "trace", 99) for text in texts]
        assert [trace.rank for trace in read] == list(range(RANKS))
        assert [trace.followed for trace in read] == [{0}, {1}, {2}, set()]
        records = [record for trace in read for record in trace.records]
        ran = without_waits(records)
        assert _early(records) and not _early(ran)
        profiled = profile(ran)
        assert (profiled.hosts, profiled.batches, profiled.steps) == (tuple(range(RANKS)), 4, 2)
        costs, wanted = profiled.costs(2 * 10**6), ppopt.torch.as_run(pipeline).costs
        for field in ("forward", "weight", "backward_input"):
            for measured, slept in zip(costs[field], getattr(wanted, field), strict=True):
                assert measured >= slept - 1

    def test_a_trace_shows_the_collectives_of_fsdp(self, world: World) -> None:
        """Every step gathers before the first F ends, which waits for it, and reduces at last.

        PyTorch 2.9 has no range for the reduction.
        """
        from ppopt.profiles.readers.torch_profiler import parse_trace  # noqa: PLC0415

        texts = world.run(torch_jobs.traced_fsdp, [()] * RANKS)
        for rank, text in enumerate(texts):
            trace = parse_trace(text, "trace", 99)
            stage = rank // 2
            records, collectives = divided(trace.records)
            assert [(row.kind, row.stage, row.step) for row in collectives] == [
                (kind, stage, step)
                for step in range(2)
                for kind in (AuxiliaryKind.UNSHARD, AuxiliaryKind.GRADIENT_SYNC)[: 1 + REDUCES]
            ]
            for step in range(2):
                ran = [record for record in records if record.step == step]
                unshard, *syncs = (row for row in collectives if row.step == step)
                assert unshard.end <= min(record.end for record in ran)
                assert all(sync.end > max(record.end for record in ran) for sync in syncs)

    @pytest.mark.parametrize("batches", [2, 5])
    def test_memory_is_counted(self, world: World, batches: int) -> None:
        """Three layers of 8 x 8 floats and a tanh; a tensor of 2 x 8 floats takes 64 bytes.

        F keeps the output of every tanh but the last, which is the stage's output and stays until
        the step ends. B keeps the gradient of every layer's output, from which W makes that of the
        weights; stage 0's B does nothing. Weights and gradients: 2 x 3 x (64 + 8) floats. For every
        microbatch there are its output, the gradient of its input (not on stage 0), and buffers for
        what comes from another rank: stage 4 takes its input from stage 3, on the same one. The
        loss of the last stage stays, too; `mse_loss` returns it in a storage as large as its input.
        """
        schedule = probe(batches, [0, 1, 2, 3, 3])
        memory = world.run(torch_jobs.metered, [(schedule,)] * RANKS)
        each = [(1, 1), (2, 2), (2, 2), (1, 2), (0, 2 + 1)]  # received, made and kept
        wanted = {
            stage: StageMemory(2 * 64, 1728, 64 * (received + sent), 3 * 64 if stage else 0)
            for stage, (received, sent) in enumerate(each)
        }
        assert memory == [wanted] * RANKS

    def test_a_step_takes_at_least_what_was_predicted(self, world: World) -> None:
        schedule = evaluate(Pipeline(stages=RANKS, batches=4), "zb-h1")
        ran = run_sleeping(world, schedule, steps=2, seconds_per_unit=0.01)
        assert float(execution.predicted_makespan(schedule)) * 0.01 <= min(ran.steps)

    @pytest.mark.parametrize("barrier", [False, True])
    def test_a_step_runs_its_gradient_work(self, world: World, barrier: bool) -> None:
        """Weights come before F, gradients after the last W or BW, the optimizer last."""
        pipeline = Pipeline(
            stages=RANKS, batches=3, placement="v", unshard=2, gradient_sync=[3, 1, 9, 1],
            optimizer=1, optimizer_barrier=barrier,
        )  # fmt: skip
        schedule = evaluate(pipeline, "zbv")
        sleepless = WrappedWorld(world, torch_jobs.counted)
        ran = run_sleeping(sleepless, schedule, seconds_per_unit=0.005)
        for rank, (_, slept) in enumerate(sleepless.outcomes):
            own = [row for row in besides_of(schedule).rows() if row.device == rank]
            queued = [row for row in own if row.kind is not AuxiliaryKind.OPTIMIZER]
            work = schedule.metrics.busy_ticks[rank] + sum(row.end - row.start for row in queued)
            assert sum(slept) == pytest.approx(2 * 0.005 * float(pipeline.ticks.time(work)))
        computed, besides = divided(ran.records)
        around = {(row.kind, row.stage): row for row in besides}
        assert around.keys() == {(row.kind, row.stage) for row in besides_of(schedule).rows()}
        syncs = [row for row in besides if row.kind is AuxiliaryKind.GRADIENT_SYNC]
        for sync in syncs:
            records = [record for record in computed if record.stage == sync.stage]
            assert around[AuxiliaryKind.UNSHARD, sync.stage].end <= min(r.start for r in records)
            assert sync.start >= max(record.end for record in records)
        for row in besides:
            if row.kind is AuxiliaryKind.OPTIMIZER:
                waits = [sync.end for sync in syncs if barrier or sync.device == row.device]
                assert row.start >= max(waits)

    def test_links_take_their_time(self, world: World) -> None:
        """One microbatch crosses three links and back: 4 x (1 + 2) of work and 6 x 5 of links, the
        same with and without a split. Links of two speeds: there 2 + 3 + 4, back three times 1."""
        matrix = [[0, 2, 9, 9], [1, 0, 3, 9], [9, 1, 0, 4], [9, 9, 1, 0]]
        for p2p, wanted in ((5, 42), (matrix, 12 + 9 + 3)):
            schedule = evaluate(Pipeline(stages=RANKS, batches=1, p2p=p2p), "1f1b")
            assert execution.predicted_makespan(schedule) == wanted
            sleepless = WrappedWorld(world, torch_jobs.slept)
            ran = run_sleeping(sleepless, schedule, steps=2, seconds_per_unit=0.005)
            assert ran.steps == pytest.approx((wanted * 0.005,) * 2)
            lengths = {row.op.kind: row.end - row.start for row in ran.records}
            assert lengths == {OpKind.F: 5_000_000, OpKind.BW: 10_000_000}, "waits are no work"


def _early(records: Iterable[Record]) -> list[Record]:
    """F and backwards that begin before the operation on the neighbouring stage has ended."""
    ran, before = list(records), {OpKind.F: -1, OpKind.B: 1, OpKind.BW: 1}
    ends = {(row.step, row.kind, row.stage, row.microbatch): row.end for row in ran}

    def input_end(row: Record) -> int:
        stage = row.stage + before[row.kind]
        return ends.get((row.step, row.kind, stage, row.microbatch), 0)

    return [row for row in ran if row.kind in before and row.start < input_end(row)]


def test_as_run() -> None:
    """Stage 0's split: nothing in B, everything in W; costs stay those of the stages."""
    pipeline = ppopt.torch.as_run(
        Pipeline(stages=2, batches=2, placement="v", forward=2, backward=[6, 8], mem_limit="1f1b")
    )
    assert pipeline.placement == (0, 1, 1, 0)
    assert pipeline.ticks.durations[OpKind.B] == (0, 4, 4, 3)
    assert pipeline.ticks.durations[OpKind.W] == (6, 4, 4, 3)
    assert pipeline.ticks.durations[OpKind.BW] == (6, 8, 8, 6)
    assert pipeline.ticks.per_unit == 2
    assert pipeline.limits == (2, 2)


def test_as_run_of_a_model_in_layers() -> None:
    """Its stages, without the layers: the costs would be summed again."""
    model = ppopt.Model(layers=[ppopt.Layer(forward=1, backward=3, weight=1, count=4)])
    pipeline = model.pipeline(devices=2, batches=4)
    as_it_runs = ppopt.torch.as_run(pipeline)
    assert as_it_runs.ticks.durations[OpKind.B] == (0, 4)
    assert as_it_runs.ticks.durations[OpKind.W] == (6, 2)
    searched = replace(pipeline, first_backward="weight")
    assert searched.ticks.durations == as_it_runs.ticks.durations
    assert ppopt.torch.as_run(searched).ticks.durations == as_it_runs.ticks.durations


class TestWorld:
    def test_a_failing_rank_is_named(self) -> None:
        with World(1) as world, pytest.raises(RunError, match=r"rank 0: (?s:.*)ZeroDivisionError"):
            world.run(torch_jobs.divide, [(0,)])

    def test_a_silent_rank_is_not_waited_for_for_ever(self) -> None:
        with World(1) as world:
            world.run(torch_jobs.divide, [(1,)])
            world.patience = 0.3
            with pytest.raises(RunError, match=r"rank 0 has not answered in 0\.3 s"):
                world.run(torch_jobs.doze, [()])

    def test_sizes(self) -> None:
        with pytest.raises(InputError, match="run: 100 processes; from 1 to 64"):
            World(100)


def test_the_page_and_the_file_of_a_measured_step(world: World, tmp_path: Path) -> None:
    """Predicted and measured share a page; the file comes back equal."""
    from ppopt.formats import schedule_json  # noqa: PLC0415
    from ppopt.profiles.measured_runs import measured  # noqa: PLC0415

    schedule = evaluate(Pipeline(stages=RANKS, batches=4), "1f1b")
    ran = run_sleeping(world, schedule, steps=3, seconds_per_unit=0.004)
    step = measured(ran.records, schedule.pipeline, 4 * 10**6)
    (tmp_path / "m.json").write_text(schedule_json.dumps(step))
    assert read_schedule(tmp_path / "m.json")[0] == step
    assert step.metrics.first_ticks[0] == 0
    length = float(step.pipeline.ticks.time(step.metrics.makespan_ticks)) * 0.004
    assert length == pytest.approx(sorted(ran.steps)[1], abs=1e-5), abbreviated(ran.steps)
