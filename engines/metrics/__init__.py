"""The engines' own view of the load: one frame of the same names, whatever an engine calls them."""

from engines.metrics.source import DrainedIterations, Histogram, MetricsSource, Prometheus, Series

__all__ = ["DrainedIterations", "Histogram", "MetricsSource", "Prometheus", "Series"]
