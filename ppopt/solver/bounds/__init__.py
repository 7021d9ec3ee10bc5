"""Lower bounds, each with its certificate."""
