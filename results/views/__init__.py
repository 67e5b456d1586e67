"""Definition views: the figures that other benchmark clients would print for our log, and why they differ.

>>> from bakeoff.results import load
>>> from bakeoff.results.views import views
>>> views(load("runs/RUN").finished[0])["vllm"].figures["Mean TTFT (ms)"].value
"""

from bakeoff.results.run.cells import Trial
from bakeoff.results.views import aiperf, genai_bench, guidellm, inference_perf, mlperf, sglang, vllm
from bakeoff.results.views.base import Conventions, Definition, Figure, Log, MetricFamily, Tool, View

VIEWS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        vllm.TOOL, aiperf.TOOL, guidellm.TOOL, sglang.TOOL, genai_bench.TOOL, inference_perf.TOOL, mlperf.TOOL,
    )
}  # fmt: skip
"""Every tool by name."""


def views(trial: Trial) -> dict[str, View]:
    """What each tool would print for ``trial``."""
    log = Log.of(trial)
    return {name: tool.view(log) for name, tool in VIEWS.items()}


__all__ = ["VIEWS", "Conventions", "Definition", "Figure", "Log", "MetricFamily", "Tool", "View", "views"]
