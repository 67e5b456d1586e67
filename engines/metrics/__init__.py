"""The engines' own metrics, under one set of names for all engines."""

from bakeoff.engines.metrics.source import DrainedIterations, Histogram, MetricsSource, Positions, Prometheus, Series

__all__ = ["DrainedIterations", "Histogram", "MetricsSource", "Positions", "Prometheus", "Series"]
