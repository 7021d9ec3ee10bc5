"""The search over partitions: which layers every stage holds, chosen with the schedule.

Contains the bounds over all partitions at once, and the choice among them.
"""
