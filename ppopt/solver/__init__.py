"""The search for the best schedule: heuristics, bounds and exact methods around one incumbent.

It imports `rechecker`, `verifier`, `strategies`, `schedule` and `problem`.
"""
