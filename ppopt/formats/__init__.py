"""Files in and out: configs, models, schedules, and the formats of PyTorch, trainers and Perfetto.

It imports `problem`, `schedule`, `strategies` and `verifier`.
"""
