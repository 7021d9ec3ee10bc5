"""The search for the best schedule: heuristics, bounds and exact methods around one incumbent.

Imports `rechecker`, `verifier`, `strategies`, `schedule` and `problem`.
The re-checker and the verifier never import this package.
"""
