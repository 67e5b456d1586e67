"""Makes requests of what was recorded, once the load has ended."""
