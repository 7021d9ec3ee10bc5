"""GPUs: every value of every GPU, with its basis and source."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from ppopt import InputError, derive_model
from ppopt.derivation.gpus import Basis, Gpu, gpu_named, gpus
from tests.factories.configs import LLAMA_8B

VALUES = [field.name for field in fields(Gpu) if field.name not in ("name", "origins")]
PEAKS = ("bf16", "fp8", "fp4")
BUS = ("all_gather", "all_reduce", "all_to_all")


@pytest.mark.parametrize("gpu", gpus().values(), ids=gpus())
class TestEveryGpu:
    def test_every_value_has_a_basis_and_a_source(self, gpu: Gpu) -> None:
        known = [name for name in VALUES if getattr(gpu, name) is not None]
        assert set(gpu.origins) == set(known)
        assert set(VALUES) - set(known) <= {"fp8", "fp4"}
        assert all(origin.source.strip() for origin in gpu.origins.values())

    def test_peaks_and_links_are_published(self, gpu: Gpu) -> None:
        published = [*(peak for peak in PEAKS if getattr(gpu, peak)), "memory_speed"]
        assert {gpu.origins[name].basis for name in [*published, "node_bandwidth"]} == {
            Basis.PUBLISHED
        }

    def test_values_are_plausible(self, gpu: Gpu) -> None:
        """FP8 has twice the peak of BF16, FP4 twice of FP8 or more; a node is faster than NICs."""
        assert 1e14 < gpu.bf16 < 1e16 and 2e11 < gpu.memory_speed < 1e13
        assert gpu.fp8 is None or gpu.fp8 == pytest.approx(2 * gpu.bf16, rel=0.02)
        assert gpu.fp4 is None or gpu.fp4 >= 2 * (gpu.fp8 or 0)
        assert gpu.network_bandwidth <= gpu.node_bandwidth
        assert gpu.kernel_time < 1e-4 and gpu.network_latency < 1e-3

    def test_shares_are_within_0_and_1(self, gpu: Gpu) -> None:
        shares = [getattr(gpu, name) for name in VALUES if name.endswith("_efficiency")]
        shares += [share for name in BUS for share in getattr(gpu, name).values()]
        assert len(shares) >= 7 + len(BUS) and all(0 < share <= 1 for share in shares)

    def test_bus_bandwidths_are_by_ranks_of_a_node(self, gpu: Gpu) -> None:
        for name in BUS:
            ranks = list(getattr(gpu, name))
            assert (
                ranks[0] == 2 and ranks == sorted(ranks) and ranks[-1] <= max(2, gpu.gpus_per_node)
            )


def test_a_name_is_read_in_any_case() -> None:
    assert gpu_named("H100-PCIe") is gpu_named("h100-pcie")


def test_values_that_another_gpu_measured_are_assumed() -> None:
    measured, inherited = (
        gpu_named(name).origins["attention_efficiency"] for name in ("h100", "h20")
    )
    assert measured.basis is Basis.MEASURED
    assert inherited == (Basis.ASSUMED, f"as h100: {measured.source}")


class TestOwnFile:
    """A GPU of the user's own file."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "my-gpu.toml"

    def test_its_values_replace_those_of_the_gpu_that_it_is_like(self, file: Path) -> None:
        file.write_text('like = "H100"\nmemory = 96\nkernel_time = "3us"\nsource = "our test"')
        own, h100 = gpu_named(file), gpu_named("h100")
        assert (own.name, own.memory, own.kernel_time) == ("my-gpu", 96, 3e-6)
        assert own.origins["memory"] == (Basis.USER_FILE, "our test")
        assert own.origins["bf16"] == (Basis.ASSUMED, f"as h100: {h100.origins['bf16'].source}")
        changed = ("name", "origins", "memory", "kernel_time")
        for name in VALUES:
            assert name in changed or getattr(own, name) == getattr(h100, name)

    def test_peak_memory_and_memory_speed_suffice(self, file: Path) -> None:
        file.write_text("bf16 = 459e12\nmemory = 95\nmemory_speed = 2765e9")
        own = gpu_named(str(file))
        assert (own.bf16, own.memory, own.memory_speed) == (459e12, 95, 2765e9)
        assert own.fp8 is None
        assert own.origins["bf16"] == (Basis.USER_FILE, "given in my-gpu.toml")
        assert own.origins["all_gather"].basis is Basis.ASSUMED

    def test_another_bf16_peak_leaves_out_the_other_peaks(self, file: Path) -> None:
        """An FP8 peak of another GPU would make FP8 look thirteen times as fast as BF16."""
        file.write_text('like = "h100"\nbf16 = "148TFLOP/s"')
        assert gpu_named(file).fp8 is None
        file.write_text('like = "h100"\nbf16 = "148TFLOP/s"\nfp8 = "296TFLOP/s"')
        assert gpu_named(file).fp8 == 296e12

    def test_numbers_carry_units(self, file: Path) -> None:
        lines = {
            "bf16": "'1.2PFLOPS'",
            "memory": "'98304 MiB'",
            "memory_speed": "'3350 GB/s'",
            "network_bandwidth": "'400Gb/s'",
            "matrix_overhead": "'2.5 GFLOP'",
            "network_latency": "'12us'",
            "all_to_all": "{8 = 0.5, 2 = '0.7'}",
            "all_reduce": "0.9",
        }
        file.write_text("\n".join(f"{key} = {value}" for key, value in lines.items()))
        own = gpu_named(file)
        assert [getattr(own, name) for name in lines] == [
            *(1.2e15, 96, 3.35e12, 50e9, 2.5e9, 12e-6, {2: 0.7, 8: 0.5}, {2: 0.9}),
        ]
        assert list(own.all_to_all) == [2, 8]

    def test_a_model_is_derived_for_it(self, file: Path) -> None:
        file.write_text('like = "h100"\nname = "half"\nbf16 = "494.7TFLOP/s"\nmemory = 40')
        half, h100 = (derive_model(LLAMA_8B, gpu=name) for name in (str(file), "h100"))
        assert half.pipeline.limits == (37683,) * 4  # 0.92 x 40 GiB
        assert half.layers[1].forward > h100.layers[1].forward
        assert "x half" in half.text

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ("memroy = 80", "unknown key 'memroy'; did you mean memory?"),
            ("basis = 'measured'", "unknown key 'basis'"),
            ("memory = 80", 'bf16 is missing; give it, or a GPU that has it: like = "h100"'),
            ("like = 'h10'", "like: 'h10' is unknown; did you mean h100"),
            ("like = 'any'", "like: 'any' is unknown"),
            ("like = 100", "like: 100 is not text"),
            ("like = ''", "like: name one; known are"),
            ("like = 'h100'\nbf16 = 989", "bf16: .*989.* is not within 1e.12 .. 1e.18 FLOP/s; "),
            ("like = 'h100'\nmemory = '80Gib'", "memory: '80Gib': unit Gib is unknown; write 80"),
            ("like = 'h100'\nmemory = 85899345920", "memory: .* is not within 1 .. 100000 GiB"),
            ("like = 'h100'\nmemory = true", "memory: True is not a number"),
            ("like = 'h100'\nmemory = nan", "memory: NaN is not a finite number"),
            ("like = 'h100'\nmemory = 'much'", "memory: 'much' is not a number"),
            ("like = 'h100'\nkernel_time = 5", "kernel_time: 5 is not within 0 .. 1 s; write"),
            ("like = 'h100'\nmatrix_efficiency = 75", "75 is not within 0.001 .. 1; write 0.6"),
            ("like = 'h100'\ngpus_per_node = 7.5", "gpus_per_node: .* is not a whole number"),
            ("like = 'h100'\nall_reduce = {1 = 0.5}", "all_reduce: '1' is no number of ranks"),
            ("like = 'h100'\nall_reduce = {8 = 2}", "all_reduce: 8: 2 is not within 0.001 .. 1"),
            ("like = 'h100'\nall_reduce = {}", "all_reduce: the table is empty"),
            ("like = 'h100'\nname = \"a\\nb\"", "name: .* is not one line"),
            ("like = 'h100'\nsource = ''", "source: '' is not one line"),
            ("like = h100", "not TOML"),
            ("", "the file is empty"),
        ],
    )
    def test_refused(self, file: Path, content: str, expected: str) -> None:
        file.write_text(content)
        with pytest.raises(InputError, match=expected) as raised:
            gpu_named(file)
        message = str(raised.value)
        assert message.startswith(f"{file}: ") and "\n" not in message

    def test_no_file(self, file: Path) -> None:
        with pytest.raises(InputError, match=r"my-gpu.toml: cannot be read"):
            gpu_named(file)
