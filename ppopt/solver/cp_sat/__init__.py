"""The CP-SAT model of an instance, of all devices or a subset, and how it is run."""
