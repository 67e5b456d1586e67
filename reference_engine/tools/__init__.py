"""Implementations of the commands of `python -m reference_engine` other than `serve`."""
