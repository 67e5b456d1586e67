"""Recorded traffic: readers of the public traces' formats, all of which yield :class:`~workloads.traces.row.TraceRow`."""
