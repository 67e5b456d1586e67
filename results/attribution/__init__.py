"""Where the latency of requests came from, by the engine's own record of its steps (docs/profile.md).

>>> import bakeoff
>>> run = bakeoff.load("runs/RUN")
>>> run.attribution.groupby(["trial", "part"]).seconds.mean()
"""

from bakeoff.results.attribution.catalogue import PARTS, Latency, Part, PartInfo
from bakeoff.results.attribution.trial import Attribution, attribution_of

__all__ = ["PARTS", "Attribution", "Latency", "Part", "PartInfo", "attribution_of"]
