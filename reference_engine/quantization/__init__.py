"""Weights in fewer bits: quantising them, storing them in memory and checkpoints, and multiplying by them."""
