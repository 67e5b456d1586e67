"""Weights in fewer bits: how they are made, kept in memory, read from and written to checkpoints, and multiplied."""
