"""Where the rows of a sweep are done: in processes of this machine, or by Dask on a cluster.

Imports the tasks of a sweep (`ppopt.studies.task`) and all below them.
"""
