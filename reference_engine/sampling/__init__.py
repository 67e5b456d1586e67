"""From logits to tokens: one function, one idea per file behind it."""

from reference_engine.sampling.sampler import sample

__all__ = ["sample"]
