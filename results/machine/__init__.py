"""What was measured of a machine once: its ceilings, and the load generator's error."""
