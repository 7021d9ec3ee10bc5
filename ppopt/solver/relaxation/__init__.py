"""What a schedule of all devices, or of some of them, must obey: delays, precedence, pairs.

Bounds, heuristics, exact methods and the CP-SAT model use it; it imports none of them.
"""
