"""Fit presets to traces: measure a trace, fit distributions and an arrival process, and report goodness of fit."""

from workloads.fitting.arrivals import ArrivalFit, Candidate
from workloads.fitting.fit import Fit, fit
from workloads.fitting.goodness import Distance, Figure, Goodness
from workloads.fitting.toml import preset_toml

__all__ = ["ArrivalFit", "Candidate", "Distance", "Figure", "Fit", "Goodness", "fit", "preset_toml"]
