"""From logits to tokens: a `Sampler`, and its short cut for batches that are greedy throughout; one idea per file."""

from reference_engine.sampling.sampler import Sampler, all_plain, argmax

__all__ = ["Sampler", "all_plain", "argmax"]
