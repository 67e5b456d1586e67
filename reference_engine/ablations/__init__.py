"""Baselines without paging, without continuous batching and without full attention."""
