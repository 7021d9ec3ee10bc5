"""The search over recompute and offload: which layers of every stage do either.

It is chosen with the schedule.

It may import what the search of one pipeline may, and the search over configurations.
"""
