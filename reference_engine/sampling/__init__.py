"""From logits to tokens: a `Sampler`, and what needs no `Sampler`: argmax, and draws on the logits' device."""

from reference_engine.sampling.device_sampler import choose_on_device
from reference_engine.sampling.sampler import Sampler, all_plain, argmax

__all__ = ["Sampler", "all_plain", "argmax", "choose_on_device"]
