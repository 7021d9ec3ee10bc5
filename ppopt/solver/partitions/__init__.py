"""The search over partitions: which layers every stage holds, chosen with the schedule.

Bounds over all partitions at once, and the choice among them.
"""
