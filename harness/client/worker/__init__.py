"""A worker: a process that sends its share of a load and records it, and does nothing else."""
