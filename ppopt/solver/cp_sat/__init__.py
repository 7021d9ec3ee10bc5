"""The CP-SAT model of an instance, of all devices or a subset, and runs of CP-SAT."""
