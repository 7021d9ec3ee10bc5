"""Methods that end with a proof over all devices."""
