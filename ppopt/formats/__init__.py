"""Reading and writing of files: configs, models, schedules; PyTorch, trainers and Perfetto.

This package imports `problem`, `schedule`, `strategies` and `verifier`.
"""
