"""Presets from traces: what a trace looks like, which processes and distributions look like it, and how nearly."""

from workloads.fitting.arrivals import ArrivalFit, Candidate
from workloads.fitting.fit import Fit, fit
from workloads.fitting.goodness import Distance, Figure, Goodness
from workloads.fitting.toml import preset_toml

__all__ = ["ArrivalFit", "Candidate", "Distance", "Figure", "Fit", "Goodness", "fit", "preset_toml"]
