"""From logits to tokens: `sample`, and its short cut where nothing but the likeliest is wanted; one idea per file."""

from reference_engine.sampling.sampler import all_plain, most_likely, sample

__all__ = ["all_plain", "most_likely", "sample"]
