"""Recorded traffic: a reader for each public format, all of which yield :class:`~workloads.traces.row.TraceRow`."""
