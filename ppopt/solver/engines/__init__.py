"""Executors of tasks: this process, processes of this machine, or Dask on a cluster."""
