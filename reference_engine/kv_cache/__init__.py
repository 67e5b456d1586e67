"""Where keys and values live: block pool, block tables and the storage tensors."""
