"""Times and memory of a model's layers, computed from its `config.json`, a GPU and a parallelism.

`derive_model` (`derived_model.py`) is the entry. Kernels and collectives are estimated from
published rates of the GPU.

This package imports `problem` and `formats`. Nothing here is measured, and every figure says so.
"""
