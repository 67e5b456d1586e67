"""Tensor parallelism: each process (rank) holds a shard of every layer and of the KV cache."""
