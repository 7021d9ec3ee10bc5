"""What is to be scheduled: pipelines, costs, the instance. Imports `ppopt.errors` alone."""
