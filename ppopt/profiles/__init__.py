"""Measured runs: records of operations, the pipeline estimated from them, and their sources.

May import the problem, the schedule, the verifier and the formats.
"""
