"""The search over partitions: the layers of every stage are chosen with the schedule.

Contains the bounds over all partitions at once, and the choice among them.
"""
