"""Executors of the tasks of a sweep: processes of this machine, or Dask on a cluster.

Imports the tasks of a sweep (`ppopt.studies.task`) and all below them.
"""
