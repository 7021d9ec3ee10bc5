"""Files in and out: configs, models and schedules."""
