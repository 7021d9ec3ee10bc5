"""The search over placements: which device hosts each stage, chosen with the schedule.

The space of placements with a bound of each and of all, and the choice among them.
"""
