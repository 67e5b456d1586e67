"""Two sides compared: what may be compared, by how much they differ, and what a gate decides."""
