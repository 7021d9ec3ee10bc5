"""Models in layers derived from published dimensions: an architecture, a GPU and a training.

It imports `problem` and `formats`. Nothing here is measured, and every figure says so.
"""
