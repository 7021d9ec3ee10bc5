"""The search over partitions: which layers every stage holds, chosen with the schedule.

Bounds over all partitions at once, candidate partitions, and the search that solves them.
"""
