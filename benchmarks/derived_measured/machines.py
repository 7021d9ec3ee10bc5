"""GPUs of measured runs, and their networks where the source says so."""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks.derived_measured.runs import NotPredictedError, Run
from ppopt.derivation.gpus import Gpu, gpu_named, gpus

NETWORKS = (("4 x 100 Gb/s OPA", 6.25e9), ("Selene, 8 x HDR", 25e9), ("400 Gb/s", 50e9))
"""What a row says of its network, and the bytes/s of a GPU's share of it, one way."""
A100_40GB = 1.555e12
"""Bytes/s of its memory (NVIDIA A100 data sheet)."""
ALIASES = {
    "mi355": "mi355x",
    "mi300": "mi300x",
    "a100_40gb": "a100",
    "a100_80gb": "a100",
    "h100_80gb": "h100",
}


def gpu_of(run: Run) -> Gpu:
    """The GPU of a run on its network; NotPredictedError if it is unknown or not one kind."""
    if "," in run.hardware.partition(" (")[0] and "RTX" in run.hardware:
        raise NotPredictedError("GPUs of several kinds in one run")
    name_parts = re.split(r"[ ,;(]", run.hardware.removeprefix("DGX-").lower())
    name = name_parts[0]
    name = ALIASES.get(name, name)
    if name not in gpus():
        raise NotPredictedError(f"unknown GPU: {name.upper()}")
    gpu = gpu_named(name)
    if name_parts[0] == "a100_40gb":
        gpu = replace(gpu, memory=40, memory_speed=A100_40GB)
    for network, speed in NETWORKS:
        if network in run.hardware:
            return replace(gpu, network_bandwidth=speed)
    return gpu
