"""Methods over all devices; most can prove optimality."""
