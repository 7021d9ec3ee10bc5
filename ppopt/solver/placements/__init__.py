"""The search over placements: which device hosts each stage, chosen with the schedule.

Contains the space of placements with their bounds, and the choice among them.
"""
