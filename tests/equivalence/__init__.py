"""The same answers before and after a change: instances of all kinds, and the models of CP-SAT.

`python -m tests.equivalence record -o F` writes a record; `check F` solves again and says what
differs; `compare F G` says what differs between two records.
"""
