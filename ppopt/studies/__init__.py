"""Questions that take many schedules: evaluate, compare, frontier, robustness, references.

Imports the solver, the strategies and all below them.
"""
