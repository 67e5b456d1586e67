"""Fit presets to traces: measure a trace, fit distributions and an arrival process, and report goodness of fit."""

from bakeoff.workloads.fitting.arrivals import ArrivalFit, Candidate
from bakeoff.workloads.fitting.fit import Fit, fit
from bakeoff.workloads.fitting.goodness import Distance, Figure, Goodness
from bakeoff.workloads.fitting.toml import preset_toml

__all__ = ["ArrivalFit", "Candidate", "Distance", "Figure", "Fit", "Goodness", "fit", "preset_toml"]
