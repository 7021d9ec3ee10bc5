"""Schedules: orders, timing, event simulation, list scheduling, metrics, causes of idle time.

It imports only `problem` and `ppopt.errors`.
"""
