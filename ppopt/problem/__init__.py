"""What is to be scheduled: a model's layers or stages on devices, their costs and memory limits.

`Pipeline` (`pipeline.py`) holds what a user describes. `Problem` (`problem.py`) adds the objective
and the kind of the backwards. `Instance` (`instance.py`) is a problem in whole ticks: classes of
operations, resources, precedence and memory. Strategies and searches schedule instances.

This package imports only `ppopt.errors`.
"""
