"""Tensor parallelism: several processes, each with a part of every layer and of the KV cache, compute one step."""
