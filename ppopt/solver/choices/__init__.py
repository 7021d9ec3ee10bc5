"""What is chosen with the schedule: partition, placement, recompute, and one search over them.

It may import the search of one pipeline. The rooms of single choices import `choice.py`.
"""
