"""Files that survive ``kill -9``: append-only logs, atomic replacement, and proof that nothing was lost."""
