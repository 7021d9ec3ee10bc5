"""The search over recompute: which layers of every stage recompute, chosen with the schedule.

It may import what the search of one pipeline may, and the search over configurations.
"""
