"""Executors of the tasks of a sweep: processes of this machine, or Dask on a cluster.

May import the tasks of a sweep (`ppopt.studies.task`) and all packages below them.
"""
