"""Functions that need many schedules: compare, frontier, plan, sweep, robustness, references.

May import the solver, the strategies and all packages below them.
"""
