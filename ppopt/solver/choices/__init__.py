"""Choices made with the schedule (partition, placement, recompute), and one search over them.

Imports the search of one pipeline. The packages of single choices import `choice.py`.
"""
