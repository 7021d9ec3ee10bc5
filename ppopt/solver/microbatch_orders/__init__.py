"""Orders of microbatches that differ: local search with exact timing, and bounds over all orders.

Every stage runs every kind of operation in one common order of the microbatches.
"""
