"""Other ways to solve the same problem, each one module with a function `solve`."""
