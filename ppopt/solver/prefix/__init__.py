"""Exact search over beginnings of schedules, of which only those are kept that none outdoes.

Microbatches run in order within a kind and stage, so what a beginning has done is a count for each
kind and stage, and what follows depends on these counts and on a few times alone. Of two beginnings
with the same counts, one that is no later anywhere makes the other superfluous. Where memory is
tight few microbatches are under way, there are few beginnings, and their number does not grow with
the microbatches: the search takes time in proportion to the length of the run, where a search
over orders takes time that grows exponentially.

Gromicho, van Hoorn, Saldanha-da-Gama, Timmer, "Solving the job-shop scheduling problem optimally by
dynamic programming", Computers & Operations Research 39 (2012), is the same for jobs that differ.
"""
