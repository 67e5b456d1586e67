"""A finished or running run, read: trials, cells, levels and the answer of a search."""
