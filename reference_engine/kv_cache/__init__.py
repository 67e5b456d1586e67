"""Storage of keys and values: block pool, block tables and tensors."""
