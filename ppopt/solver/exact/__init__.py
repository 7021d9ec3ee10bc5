"""Methods on all devices that can prove optimality, CP-SAT and dynamic programming."""
