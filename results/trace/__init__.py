"""Traces of profiled trials for Perfetto (https://ui.perfetto.dev), which opens them in the browser, offline."""

from bakeoff.results.trace.files import write_traces

__all__ = ["write_traces"]
