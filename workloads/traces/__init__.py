"""Recorded traffic: readers of public formats, all of which yield :class:`~bakeoff.workloads.traces.row.TraceRow`."""
