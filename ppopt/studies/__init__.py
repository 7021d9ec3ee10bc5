"""Studies that need many schedules: compare, frontier, plan, sweep, robustness, references.

Imports the solver, the strategies and all below them.
"""
