"""What is to be scheduled: stages, placement, costs, precedence. Imports `ppopt.errors` alone."""
