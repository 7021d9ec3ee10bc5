"""The search over recompute and offload: which layers of every stage do either.

These are chosen with the schedule. Imports what the search of one pipeline may, and the search over
configurations.
"""
