"""Orders of different microbatches: local search with exact timing, and bounds over all orders.

Every stage runs every kind of operation in one common order of the microbatches.
"""
