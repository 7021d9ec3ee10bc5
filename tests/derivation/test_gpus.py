"""GPUs: every value of every GPU, with its basis and source."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ppopt.derivation.gpus import Basis, Gpu, gpu_named, gpus

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
        assert 1e14 < gpu.bf16 < 1e16 and 5e11 < gpu.memory_speed < 1e13
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
            assert ranks[0] == 2 and ranks == sorted(ranks) and ranks[-1] <= gpu.gpus_per_node


def test_a_name_is_read_in_any_case() -> None:
    assert gpu_named("H100-PCIe") is gpu_named("h100-pcie")


def test_values_that_another_gpu_measured_are_assumed() -> None:
    measured, inherited = (gpu_named(name).origins["matrix_efficiency"] for name in ("h100", "h20"))
    assert measured.basis is Basis.MEASURED
    assert inherited == (Basis.ASSUMED, f"as h100: {measured.source}")
