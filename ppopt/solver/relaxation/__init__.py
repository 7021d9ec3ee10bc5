"""Necessary conditions of schedules: delays, precedence, overlapped pairs, microbatch symmetry.

Bounds, heuristics, exact methods and the CP-SAT model use them; this package imports none of these.
"""
