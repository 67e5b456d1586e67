"""The parent of the workers, here or on the nodes of a cluster: divides a load and joins what they record."""
