"""Schedules: when every operation starts and ends on its device.

`Schedule` (`schedule.py`) is the result of every strategy and search. `timing.py` computes the
starts from the order on every device, `generation.py` simulates event by event,
`list_scheduling.py` applies priority rules. Others compute metrics and the causes of idle time.

This package imports only `problem` and `ppopt.errors`.
"""
