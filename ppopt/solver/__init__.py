"""The search for the best schedule: heuristics, bounds and exact methods around one incumbent.

Imports `strategies`, `schedule` and `problem`, and checks its results by `rechecker` and `verifier`.
The re-checker and the verifier never import this package.
"""
