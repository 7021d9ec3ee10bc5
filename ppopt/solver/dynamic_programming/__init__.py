"""Dynamic programming over partial schedules, with dominance.

Gromicho, van Hoorn, Saldanha-da-Gama, Timmer, "Solving the job-shop scheduling problem optimally by
dynamic programming", Computers & Operations Research 39 (2012).
"""
