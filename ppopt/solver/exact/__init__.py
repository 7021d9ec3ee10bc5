"""Methods on all devices, most of which can prove optimality: CP-SAT, dynamic programming."""
