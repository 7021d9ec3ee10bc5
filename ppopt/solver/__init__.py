"""Search: bounds, construction, CP-SAT, and the result they lead to."""
