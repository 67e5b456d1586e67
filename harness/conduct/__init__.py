"""Carries out runs: the conductor, the policies that choose trials, and the world that both act on."""
