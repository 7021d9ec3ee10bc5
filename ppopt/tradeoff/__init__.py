"""Memory against time: every limit at which the optimum changes."""
