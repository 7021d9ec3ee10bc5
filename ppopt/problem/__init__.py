"""The problem: layers and models, partition, placement, costs, and the instance to be scheduled.

It imports only `ppopt.errors`.
"""
