"""The search over recompute and offload of the layers of every stage, chosen with the schedule.

Imports the search over configurations, and what the search of one pipeline may import.
"""
