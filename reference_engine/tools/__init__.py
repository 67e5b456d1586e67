"""Implementations of the commands of `python -m bakeoff.reference_engine` other than `serve`."""
