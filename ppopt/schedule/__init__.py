"""A schedule and what follows from it: orders, timing, metrics, idle causes, list scheduling.

Imports `problem`.
"""
