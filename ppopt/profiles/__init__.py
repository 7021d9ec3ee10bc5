"""Measured runs: records of operations, what they say of a pipeline, and where they come from."""
