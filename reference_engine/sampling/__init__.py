"""From logits to tokens: `Sampler`, and draws on the logits' device for requests that do not need it."""

from bakeoff.reference_engine.sampling.device_sampler import choose, choose_on_device
from bakeoff.reference_engine.sampling.places import LaterPlace, Place
from bakeoff.reference_engine.sampling.sampler import Sampler, all_plain, argmax

__all__ = ["LaterPlace", "Place", "Sampler", "all_plain", "argmax", "choose", "choose_on_device"]
